"""Odd bytes, odd values, odd words: what people's files and command lines hold by accident."""

from __future__ import annotations

import random
from typing import Any

WORDS = (
    "", " ", "none", "None", "null", "nan", "NaN", "inf", "-inf", "true", "yes", "auto", "-1", "0", "1", "007", "0x1F",
    "1e400", "1e-400", "1.5", "1,5", "9223372036854775808", "-9223372036854775809", "1_000", "٣", "½", "é", "e\u0301",
    "Ω≈ç√", "日本語", "🦜", "\u202eabc", "\ufeff", "a\u0000b", "a\nb", "a\r\nb", "\t", '"', "'", "''", "\\", "../..",
    "/", ".", "~", "*", "[", "]", "{}", "[1", "a=b", "=", "==", "--", "-", "%s", "{0}", "$(id)", "<script>", "; rm",
    "x" * 300, "9" * 400, "[" * 3000, "1" + "0" * 5000, "\udcff",
)  # fmt: skip

NUMBERS = (
    0, 1, -1, 2, 3, 127, 128, -128, 255, 256, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, 2**63,
    -(2**63), 2**64, 10**30, 0.0, -0.0, 0.1, 0.5, 1.0, 1.5, -0.5, 1e-320, 3.5e38, 1e308, -1e308, float("inf"),
    float("-inf"), float("nan"),
)  # fmt: skip


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON-like value, and most of those that break things."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice((None, True, False))
    if kind == 5:
        return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(WORDS): odd_value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return rng.choice((rng.randint(-5, 300), rng.uniform(-2, 2), "".join(rng.choices("abcdef01 ._-=", k=6))))


def odd_text(rng: random.Random) -> str:
    """A word of the list, a number, or letters from anywhere in Unicode."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(WORDS)
    if kind == 1:
        return str(rng.choice(NUMBERS))
    return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x2FFF)))) for _ in range(rng.randrange(12)))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with one fault: flipped, cut off, doubled, moved, overwritten, or put in."""
    kind = rng.randrange(9)
    low = rng.randrange(len(data) + 1)
    high = min(len(data), low + rng.choice((1, 2, 8, 64, 512)))
    if kind < 2 and low < len(data):
        return data[:low] + bytes([data[low] ^ (1 << rng.randrange(8))]) + data[low + 1 :]
    if kind == 2:
        return data[:low]
    if kind == 3:
        return data[:low] + data[high:]
    if kind == 4:
        return data[:high] + data[low:]
    if kind == 5:
        return data[:low] + rng.randbytes(high - low) + data[high:]
    if kind == 6:
        return (
            data[:low] + rng.choice((b"\0", b"\xff", b'"', b"\n", b"\r", b",", b"\xef\xbb\xbf", b"\x80")) + data[low:]
        )
    if kind == 7:
        return data[:low] + bytes(rng.choice((b"\0", b"\xff", b"\x7f"))) * (high - low) + data[high:]
    return rng.choice((b"", b"\0" * 64, b"\n", data[::-1], data + data))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every place in a tree of dicts and lists."""
    found: list[tuple[Any, Any]] = []
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        found += [(tree, key), *places(tree[key])]
    return found


def disturb(tree: Any, rng: random.Random) -> None:
    """Change one place of a tree: another value, gone, renamed, a neighbour's value, or a number a little off."""
    every = places(tree)
    if not every:
        return
    holder, key = rng.choice(every)
    kind = rng.randrange(6)
    if kind < 2:
        holder[key] = odd_value(rng)
    elif kind == 2:
        del holder[key]
    elif kind == 3 and isinstance(holder, dict):
        holder[odd_text(rng)] = holder.pop(key)
    elif kind == 4:
        other, other_key = rng.choice(every)
        if other_key in other if isinstance(other, dict) else other_key < len(other):
            holder[key] = other[other_key] if not isinstance(other[other_key], dict | list) else 0
    elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] += rng.choice((-1, 1, 0.5, 2**31, -(2**40)))
    else:
        holder[key] = [holder[key]]
