"""Train, resume, evaluate: one loop for every model."""
