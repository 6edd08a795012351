"""Hashed words as plainly as can be: one Python integer after another, no arrays."""

from __future__ import annotations

import itertools
import math

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def words(text: str) -> list[bytes]:
    """Runs of ASCII letters, ASCII digits and everything beyond ASCII, in lower case as far as ASCII goes."""
    found, word = [], b""
    for byte in text.encode():
        character = bytes([byte])
        if character.isalnum() or byte >= 128:
            word += character.lower()
        elif word:
            found, word = [*found, word], b""
    return [*found, word] if word else found


def word_hash(word: bytes) -> int:
    """FNV-1a of 64 bits, mixed."""
    state = 0xCBF29CE484222325
    for byte in word:
        state = ((state ^ byte) * 0x100000001B3) & _MASK
    return _mix(state)


def hashed_words(text: str, dims: int) -> list[float]:
    """Words and pairs of neighbours, signed by the top bit, placed by the others, of length 1."""
    hashes = [word_hash(word) for word in words(text)]
    pairs = [_mix((first * 0x9E3779B97F4A7C15 + second) & _MASK) for first, second in itertools.pairwise(hashes)]
    counts = [0] * dims
    for one in hashes + pairs:
        counts[(one & (_MASK >> 1)) % dims] += -1 if one >> 63 else 1
    norm = math.sqrt(sum(count * count for count in counts))
    return [count / norm if norm else 0.0 for count in counts]
