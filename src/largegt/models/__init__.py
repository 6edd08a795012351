"""LargeGT and the baselines."""
