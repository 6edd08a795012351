"""scikit-learn and PyTorch Geometric."""
