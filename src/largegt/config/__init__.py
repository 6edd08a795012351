"""Settings, recipes, and overrides from the command line."""
