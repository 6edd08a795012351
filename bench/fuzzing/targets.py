"""The kinds of input that are fuzzed, and how many of all cases each gets."""

from __future__ import annotations

from .cases import Target
from .command_line import CommandTarget
from .folders import CheckpointTarget, ManifestTarget
from .hostile import HostileTarget
from .ingest import IngestTarget
from .settings import OverrideTarget, RecipeTarget

TARGETS: dict[str, type[Target]] = {
    "ingest": IngestTarget,
    "manifest": ManifestTarget,
    "recipe": RecipeTarget,
    "override": OverrideTarget,
    "cli": CommandTarget,
    "checkpoint": CheckpointTarget,
    "hostile": HostileTarget,
}
SHARES = {"ingest": 16, "manifest": 10, "recipe": 28, "override": 40, "cli": 3, "checkpoint": 3, "hostile": 3}
"""By what a case costs: a command line some 40 ms, an override 1."""
