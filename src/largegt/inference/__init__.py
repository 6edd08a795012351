"""Predictions and embeddings of a trained model, for nodes of the store and for new ones."""
