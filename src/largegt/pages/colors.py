"""The colours of every chart, on pages and in files: told apart by people who see red and green alike, and dark enough
on white. Lines also differ in dashes and markers."""

from __future__ import annotations

INK, MUTED = "#1b2430", "#566270"
COLORS = ("#0063a8", "#c8520a", "#00775f", "#a8327d", "#806000", "#3b86c6", "#4b5563", "#8c2d04")
DARK_COLORS = ("#6cb4ff", "#ff9d5c", "#3fd0a8", "#f08bc9", "#e3c04a", "#a9d8ff", "#c3c9d1", "#d99a80")
"""The same for a dark page."""
