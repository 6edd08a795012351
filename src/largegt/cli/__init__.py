"""The command line: one verb per stage. Heavy imports are inside the verbs, so `--help` is fast."""

from . import data, prediction, studies, training
from .app import app, main

__all__ = ["app", "data", "main", "prediction", "studies", "training"]
