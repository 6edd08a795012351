"""Cases and verdicts.

A case is (kind, seed, number): the same three give the same case on any machine. It starts from something valid and
takes some steps, each with a random stream of its own, so that a failing case is shrunk by leaving steps out.

Verdicts: `right` (accepted, and the result is what a slow and obvious reading gives), `accepted` (nothing to compare
with), `refused` (a one-line error for the user). Everything else is a bug.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from largegt.errors import LargeGTError

RIGHT, ACCEPTED, REFUSED, BUG = "right", "accepted", "refused", "bug"
MOST_STEPS = 4
LONGEST_MESSAGE = 2000


class Wrong(AssertionError):
    """The work was done and its result is not what it should be."""


class Target(Protocol):
    """One kind of input. Made once per worker, with a folder of its own; `run` leaves nothing that later cases see."""

    def __init__(self, folder: Path) -> None: ...

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        """`right` or `accepted`; a `LargeGTError` is a refusal, any other exception a bug."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `signature` is the same for bugs with one cause, as far as one can tell."""

    number: int
    verdict: str
    signature: str = ""
    detail: str = ""


def steps_of(kind: str, seed: int, number: int) -> tuple[int, ...]:
    """The steps of a whole case: mostly one or two, so that one fault is met alone as well as in company."""
    count = random.Random(f"{seed}:{kind}:{number}:steps").choice((0, 1, 1, 1, 1, 2, 2, 3, MOST_STEPS))
    return tuple(range(count))


def run_case(target: Target, kind: str, seed: int, number: int, steps: Sequence[int] | None = None) -> Outcome:
    """Run one case, whole or with some of its steps only, and judge it."""
    chosen = steps_of(kind, seed, number) if steps is None else steps
    name = f"{seed}:{kind}:{number}"
    try:
        verdict = target.run(random.Random(name), [random.Random(f"{name}:{step}") for step in chosen])
        return Outcome(number, verdict)
    except LargeGTError as error:
        fault = fault_of_message(str(error))
        if not fault:
            return Outcome(number, REFUSED, type(error).__name__, str(error))
        return Outcome(number, BUG, f"message {fault}: {type(error).__name__}", repr(str(error))[:LONGEST_MESSAGE])
    except Exception as error:
        return Outcome(number, BUG, signature_of(error), traceback.format_exc()[-6000:])


def fault_of_message(text: str) -> str:
    """What is wrong with an error message, or nothing: it must be one readable line of text."""
    if len(text.strip()) < 10:
        return "says nothing"
    if len(text) > LONGEST_MESSAGE:
        return "is too long"
    if not all(letter.isprintable() for letter in text):
        return "is more than a line, or not readable"
    return ""


def signature_of(error: BaseException) -> str:
    """The kind of an error and the innermost place of the package that it came through."""
    if isinstance(error, Wrong):
        return f"Wrong: {str(error).partition(':')[0].partition(' (')[0]}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if f"{os.sep}largegt{os.sep}" in frame.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "outside the package"
    return f"{type(error).__name__} in {place}"
