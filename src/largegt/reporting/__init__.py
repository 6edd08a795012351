"""Runs → tables, figures, one HTML page."""
