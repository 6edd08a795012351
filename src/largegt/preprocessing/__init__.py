"""Offline preprocessing: LocalNodes, context features, positional encodings."""
