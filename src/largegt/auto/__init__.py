"""Settings searched for the graph at hand."""
