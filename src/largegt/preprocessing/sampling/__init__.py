"""LocalNodes (Algorithm 1): uniform samples of the 1- and 2-hop neighbourhood."""
