"""Slow and obvious versions of the library's algorithms: what the fast ones are compared with."""
