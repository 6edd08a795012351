"""Settings chosen for the graph at hand: by a look at it, or by search."""
