"""Hashed words as plainly as can be: one Python integer after another, no arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

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


def hashed_words(text: str, dims: int, known: Sequence[str] = ()) -> list[float]:
    """Counts of known words, then of others: signed by the top bit of the hash, placed by the rest; of length 1."""
    counts, num_hashed = [0] * dims, dims - len(known)
    places = {word.encode(): place for place, word in enumerate(known)}
    for word in words(text):
        code = word_hash(word)
        place = places.get(word, len(known) + (code & (_MASK >> 1)) % num_hashed)
        counts[place] += -1 if code >> 63 and word not in places else 1
    norm = math.sqrt(sum(count * count for count in counts))
    return [count / norm if norm else 0.0 for count in counts]


def frequent_words(cells: Iterable[str | None], most: int) -> list[str]:
    """The words that most cells have, and at least two."""
    counts = Counter(word.decode() for cell in cells if cell for word in set(words(cell)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return [word for word in ranked if counts[word] > 1][:most]
