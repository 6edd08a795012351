"""The network. It sees TokenBatches, never the graph."""
