"""What is computed once, offline: LocalNodes, context features, positional encodings."""
