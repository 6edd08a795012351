"""The paper's tables and figures, one function each, from one command."""
