"""Explain: how much columns, local nodes, contexts, labels and centroids contribute to one prediction of a LargeGT."""
