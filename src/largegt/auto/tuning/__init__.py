"""Tuning: search of a model's settings on one store by the validation score."""
