"""Graphs small enough to draw."""

SIX_NODES = [(0, 1), (1, 2), (2, 3), (0, 4)]
"""Hand-drawn: a path 3-2-1-0-4, and node 5 alone."""
