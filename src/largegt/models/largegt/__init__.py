"""The LargeGT model. Its input is a TokenBatch, never the graph."""
