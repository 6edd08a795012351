"""Fused: a function of tensors, compiled by `torch.compile` for given batch sizes.

All other sizes (the last batch of an epoch) use the uncompiled function, as does every call if compilation fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from largegt.errors import first_line

_log = logging.getLogger(__name__)


class Fused:
    """Has the signature of the function."""

    def __init__(self, function: Callable[..., Any], batch_sizes: set[int]) -> None:
        self._plain, self._sizes = function, batch_sizes
        self._works = False
        self._compiled = torch.compile(function, dynamic=False)

    def __call__(self, first: torch.Tensor, *others: Any) -> Any:
        if len(first) not in self._sizes:
            return self._plain(first, *others)
        if self._works:
            return self._compiled(first, *others)
        try:
            output = self._compiled(first, *others)
        except (RuntimeError, ImportError, OSError) as error:
            _log.warning(f"the model is not compiled, since that failed: {first_line(error)}")
            self._sizes = set()
            return self._plain(first, *others)
        self._works = True
        return output
