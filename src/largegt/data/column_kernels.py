"""Kernels that parse text cells: numbers, dates, word counts and hashed words.

Enters: trimmed UTF-8 cells in Arrow layout, cell i is data[offsets[i] : offsets[i + 1]], and a mask of valid cells.
Leaves: numbers in output arrays. Each kernel releases the GIL and processes cells independently, so that results do
not depend on batches. Cost: O(bytes) time, no memory except the output.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from .kernels import mix

NOT_A_NUMBER, READ, LONG = 0, 1, 2
_TENS = np.array([float(10**k) for k in range(23)])  # powers of ten that are exact in float64
_MOST = (1 << 53) // 10 - 1
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@njit(nogil=True, cache=True)
def _digit(data: Any, at: Any, end: Any) -> Any:
    """The digit at `at`, or -1."""
    if at < end and 48 <= data[at] <= 57:
        return np.int64(data[at]) - 48
    return np.int64(-1)


@njit(nogil=True, cache=True)
def _read_number(data: Any, at: Any, end: Any) -> Any:
    """(state, value) of `-1.5e3`, `.5`, `1,234.5`. LONG: a number that needs more than exact float64 arithmetic."""
    negative = at < end and data[at] == 45
    if at < end and (data[at] == 45 or data[at] == 43):
        at += 1
    mantissa, is_long, commas, whole, group = np.int64(0), False, False, 0, 0
    while at < end:
        digit = _digit(data, at, end)
        if digit >= 0:
            is_long = bool(is_long or mantissa > _MOST)
            mantissa = mantissa if is_long else mantissa * 10 + digit
            whole += 1
            group += 1
        elif data[at] == 44 and (group == 3 if commas else 1 <= whole <= 3):
            commas, group = True, 0
        else:
            break
        at += 1
    if commas and group != 3:
        return NOT_A_NUMBER, 0.0
    fraction, has_point = 0, at < end and data[at] == 46
    if has_point:
        at += 1
        while _digit(data, at, end) >= 0:
            is_long = bool(is_long or mantissa > _MOST)
            mantissa = mantissa if is_long else mantissa * 10 + _digit(data, at, end)
            fraction += 1
            at += 1
    if whole + fraction == 0 or (commas and has_point and fraction == 0):
        return NOT_A_NUMBER, 0.0
    exponent = 0
    if at < end and (data[at] == 101 or data[at] == 69) and not commas:
        at += 1
        minus = at < end and data[at] == 45
        if at < end and (data[at] == 45 or data[at] == 43):
            at += 1
        if _digit(data, at, end) < 0:
            return NOT_A_NUMBER, 0.0
        while _digit(data, at, end) >= 0:
            exponent = min(exponent * 10 + _digit(data, at, end), 100_000)
            at += 1
        exponent = -exponent if minus else exponent
    if at != end:
        return NOT_A_NUMBER, 0.0
    exponent -= fraction
    if is_long or abs(exponent) > 22:
        return LONG, 0.0
    value = mantissa * _TENS[exponent] if exponent >= 0 else mantissa / _TENS[-exponent]
    return READ, -value if negative else value


@njit(nogil=True, cache=True)
def read_numbers(offsets: Any, data: Any, valid: Any, states: Any, values: Any) -> None:
    """states[i] is the state of cell i; values[i] is its number if the state is READ."""
    for i in range(len(valid)):
        states[i], values[i] = NOT_A_NUMBER, 0.0
        if valid[i]:
            states[i], values[i] = _read_number(data, offsets[i], offsets[i + 1])


@njit(nogil=True, cache=True)
def _field(data: Any, at: Any, end: Any, digits: Any) -> Any:
    """The number in exactly `digits` digits from `at` on, or -1."""
    value = np.int64(0)
    for place in range(at, at + digits):
        digit = _digit(data, place, end)
        if digit < 0:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@njit(nogil=True, cache=True)
def _days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01 in the Gregorian calendar."""
    year -= 1 if month <= 2 else 0
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@njit(nogil=True, cache=True)
def _zone(data: Any, at: Any, end: Any) -> Any:
    """(read, seconds to subtract) of ``, `Z`, `UTC`, `+02`, `+0200` or `+02:00`."""
    if at < end and data[at] == 32:
        at += 1
    if at == end or (at + 1 == end and (data[at] == 90 or data[at] == 122)):
        return True, np.int64(0)
    if at + 3 == end and data[at] == 85 and data[at + 1] == 84 and data[at + 2] == 67:
        return True, np.int64(0)
    if data[at] != 43 and data[at] != 45:
        return False, np.int64(0)
    sign = 1 if data[at] == 43 else -1
    hours, minutes = _field(data, at + 1, end, 2), np.int64(0)
    at += 3
    if at < end:
        at += 1 if data[at] == 58 else 0
        minutes = _field(data, at, end, 2)
        at += 2
    good = at == end and 0 <= hours <= 15 and 0 <= minutes <= 59
    return good, sign * (hours * 3600 + minutes * 60)


@njit(nogil=True, cache=True)
def _read_date(data: Any, at: Any, end: Any) -> Any:
    """(read, microseconds since 1970 in UTC) of `2024-02-29`, `2024/02/29 23:59`, `2024-02-29T23:59:59.5+02:00`."""
    bad = (False, np.int64(0))
    if end - at < 10 or (data[at + 4] != 45 and data[at + 4] != 47) or data[at + 7] != data[at + 4]:
        return bad
    year, month, day = _field(data, at, end, 4), _field(data, at + 5, end, 2), _field(data, at + 8, end, 2)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return bad
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _MONTH_DAYS[month - 1] + (1 if leap else 0):
        return bad
    micros = _days(year, month, day) * 86_400_000_000
    at += 10
    if at == end:
        return True, micros
    if data[at] != 32 and data[at] != 84 and data[at] != 116:
        return bad
    hour, minute, second = _field(data, at + 1, end, 2), _field(data, at + 4, end, 2), np.int64(0)
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and data[at + 3] == 58):
        return bad
    at += 6
    if at < end and data[at] == 58:
        second = _field(data, at + 1, end, 2)
        at += 3
        if not 0 <= second <= 59:
            return bad
        if at < end and data[at] == 46:
            at += 1
            if _digit(data, at, end) < 0:
                return bad
            unit = np.int64(100_000)
            while _digit(data, at, end) >= 0:  # digits beyond microseconds are truncated
                micros += _digit(data, at, end) * unit
                unit //= 10
                at += 1
    good, shift = _zone(data, at, end)
    return good, micros + (hour * 3600 + minute * 60 + second - shift) * 1_000_000


@njit(nogil=True, cache=True)
def read_dates(offsets: Any, data: Any, valid: Any, good: Any, micros: Any) -> None:
    """good[i]: cell i is a date; micros[i]: microseconds since 1970 in UTC."""
    for i in range(len(valid)):
        good[i], micros[i] = False, 0
        if valid[i]:
            good[i], micros[i] = _read_date(data, offsets[i], offsets[i + 1])


@njit(nogil=True, cache=True)
def _add(sums: Any, place: Any, value: Any) -> None:
    """Add a value to sums[0, place], and its rounding error to sums[1, place] (Neumaier)."""
    total = sums[0, place] + value
    if abs(sums[0, place]) >= abs(value):
        sums[1, place] += (sums[0, place] - total) + value
    else:
        sums[1, place] += (value - total) + sums[0, place]
    sums[0, place] = total


@njit(nogil=True, cache=True)
def add_in_order(values: Any, used: Any, sums: Any) -> None:
    """Add the used rows of values [n, d] to sums [2, d] in row order, so that the sums do not depend on batches."""
    for i in range(len(values)):
        for j in range(values.shape[1]):
            if used[i] and np.isfinite(values[i, j]):
                _add(sums, j, values[i, j])


@njit(nogil=True, cache=True)
def add_sizes(values: Any, used: Any, sums: Any) -> Any:
    """Add the used numbers, their absolute values and their squares to sums [2, 3] in row order; return the number of
    nonzero values."""
    nonzero = 0
    for i in range(len(values)):
        if used[i]:
            _add(sums, 0, values[i])
            _add(sums, 1, abs(values[i]))
            _add(sums, 2, values[i] * values[i])
            nonzero += values[i] != 0
    return nonzero


@njit(nogil=True, cache=True)
def count_read(read: Any, filled: Any, used: Any) -> Any:
    """(parsed rows, first row not parsed or -1, filled rows not parsed, first of these or -1, used rows)."""
    good, first_missing, odd, first_odd, num_used = 0, -1, 0, -1, 0
    for i in range(len(read)):
        good += read[i]
        num_used += used[i]
        if not read[i]:
            first_missing = i if first_missing < 0 else first_missing
            if filled[i]:
                odd += 1
                first_odd = i if first_odd < 0 else first_odd
    return good, first_missing, odd, first_odd, num_used


@njit(nogil=True, cache=True)
def take_logarithms(values: Any, size: Any, out: Any) -> None:
    """out[i] = ±log(1 + |values[i]| / size), not vectorized, so that the bits do not depend on the position."""
    for i in range(len(values)):
        out[i] = math.copysign(math.log1p(abs(values[i]) / size), values[i])


@njit(nogil=True, cache=True)
def _letter(byte: Any) -> Any:
    """The byte in lower case if it is part of a word (ASCII letters and digits, all non-ASCII bytes), else 0."""
    if 65 <= byte <= 90:
        return np.uint64(byte + 32)
    if byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57:
        return np.uint64(byte)
    return np.uint64(0)


@njit(nogil=True, cache=True)
def count_words(offsets: Any, data: Any, valid: Any) -> Any:
    """Total number of words in valid cells."""
    words = 0
    for i in range(len(valid)):
        inside = False
        if valid[i]:
            for at in range(offsets[i], offsets[i + 1]):
                letter = _letter(data[at]) != 0
                words += letter and not inside
                inside = letter
    return words


@njit(nogil=True, cache=True)
def hash_cells(offsets: Any, data: Any, valid: Any, hashes: Any) -> None:
    """hashes[i]: 64-bit hash of cell i (FNV-1a, mixed)."""
    for i in range(len(valid)):
        state = _OFFSET
        if valid[i]:
            for at in range(offsets[i], offsets[i + 1]):
                state = (state ^ np.uint64(data[at])) * _PRIME
        hashes[i] = mix(state)


@njit(nogil=True, cache=True)
def hash_words(offsets: Any, data: Any, valid: Any, known: Any, places: Any, out: Any) -> None:
    """out[i]: word counts of cell i, normalized to length 1. A word with hash known[k] (sorted) counts at places[k];
    other words count +1 or -1 at a hashed place from len(known) on."""
    num_hashed = np.uint64(out.shape[1] - len(known))
    for i in range(len(valid)):
        out[i] = 0.0
        if not valid[i]:
            continue
        state = _OFFSET
        for at in range(offsets[i], offsets[i + 1] + 1):
            letter = _letter(data[at]) if at < offsets[i + 1] else np.uint64(0)
            if letter != 0:
                state = (state ^ letter) * _PRIME
            elif state != _OFFSET:
                word = mix(state)
                k = np.searchsorted(known, word)
                if k < len(known) and known[k] == word:
                    out[i, places[k]] += 1.0
                elif num_hashed > 0:
                    place = len(known) + np.int64((word & np.uint64(0x7FFFFFFFFFFFFFFF)) % num_hashed)
                    out[i, place] += -1.0 if word >> np.uint64(63) else 1.0
                state = _OFFSET
        square = 0.0
        for column in range(out.shape[1]):
            square += np.float64(out[i, column]) * np.float64(out[i, column])
        if square > 0.0:
            norm = np.sqrt(square)
            for column in range(out.shape[1]):
                out[i, column] = out[i, column] / norm
