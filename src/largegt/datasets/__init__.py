"""Graphs by name: the embedded demo graph, and (to come) the paper's three."""
