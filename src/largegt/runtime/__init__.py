"""Processes, threads, memory, signals and progress."""
