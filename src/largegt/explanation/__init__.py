"""Explain: which columns, local nodes, contexts, labels and centroids carried what a LargeGT says of one node."""
