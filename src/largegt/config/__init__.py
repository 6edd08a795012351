"""Every setting, the recipes, and what a command line changes of them."""
