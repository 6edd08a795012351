"""Where preparation runs."""
