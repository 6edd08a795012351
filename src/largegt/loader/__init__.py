"""From node ids to TokenBatches, gathered per batch and never stored."""
