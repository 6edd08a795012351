"""From node ids to TokenBatches: gathered per batch, never stored."""
