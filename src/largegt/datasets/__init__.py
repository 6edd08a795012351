"""Graphs by name: the embedded demo graph, the paper's three, and graphs like them."""
