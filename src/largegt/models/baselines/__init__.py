"""Baseline models, with the same training, evaluation and report as LargeGT."""
