"""Integrations with scikit-learn and PyTorch Geometric."""
