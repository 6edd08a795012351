"""Splits: assign labelled nodes to training, validation and test.

Enters: labels, and optionally a split of the user. Leaves: `split` [N] uint8, saved with the store.
Cost: O(N) time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from largegt.errors import ConfigError, InputError, nearest
from largegt.types import Array, PathLike

from .table_reading import load_npz

SPLIT_CODES = {"train": 1, "valid": 2, "test": 3}
_NAMES = {
    "train": "train", "training": "train", "tr": "train",
    "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid",
    "test": "test", "testing": "test", "te": "test",
}  # fmt: skip
_NO_SPLIT = ("", "none", "null", "nan", "-")


def split_name(text: str) -> str | None:
    """The canonical split name: `valid` for `Val`, `validation`, …; None for other words."""
    return _NAMES.get(text.strip().lower())


def given_split(num_nodes: int, parts: Mapping[str, Array], labelled: Array) -> Array:
    """`split` from node numbers or boolean masks by name. Unlabelled nodes are in no split."""
    split = np.zeros(num_nodes, dtype=np.uint8)
    for key, part in parts.items():
        name = split_name(key)
        if name is None:
            raise InputError(f"split {key!r} is not one of train, valid, test")
        nodes = np.asarray(part)
        if nodes.dtype == bool:
            if nodes.shape != (num_nodes,):
                raise InputError(f"split mask {key!r} has shape {nodes.shape}, expected ({num_nodes},): one per node")
            nodes = np.flatnonzero(nodes)
        if nodes.size == 0:
            continue
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
            raise InputError(f"split {key!r} must be a list of node numbers or a boolean mask")
        outside = (nodes < 0) | (nodes >= num_nodes)
        if outside.any():
            raise InputError(
                f"split {key!r} names node {int(nodes[outside][0])}, but nodes go from 0 to {num_nodes - 1}"
            )
        taken = (split[nodes] != 0) & (split[nodes] != SPLIT_CODES[name])
        if taken.any():
            raise InputError(
                f"node {int(nodes[taken][0])} is in two splits ({key!r} is one): each node may be in one only"
            )
        split[nodes] = SPLIT_CODES[name]
    split[~labelled] = 0
    return split


def split_codes(words: Any, where: str) -> Array:
    """uint8 codes of an Arrow column of words (`train`, `val`, …); null and empty words mean no split."""
    if pa.types.is_dictionary(words.type):
        words = words.dictionary_decode()
    if pa.types.is_null(words.type):
        return np.zeros(len(words), dtype=np.uint8)
    if not (pa.types.is_string(words.type) or pa.types.is_large_string(words.type)):
        raise InputError(f"{where}: the split must be a word (train, valid or test), found {words.type}")
    words = words.fill_null("")
    distinct = pc.unique(words)
    codes = np.zeros(len(distinct), dtype=np.uint8)
    for position, word in enumerate(distinct.to_pylist()):
        name = split_name(word)
        if name is None and word.strip().lower() not in _NO_SPLIT:
            raise InputError(f"{where}: split {word!r} is not one of train, valid, test")
        codes[position] = SPLIT_CODES[name] if name else 0
    return np.asarray(codes[pc.index_in(words, value_set=distinct).to_numpy(zero_copy_only=False)])


def npz_splits(path: PathLike, wanted: str | None) -> dict[str, Array]:
    """The train/valid/test arrays of the file, or of the split set `wanted` (`name`, or `name:3` for mask 3)."""
    set_name, _, number = (wanted or "").partition(":")
    sets: dict[str, dict[str, Array]] = {}
    for key, array in load_npz(path).items():
        prefix, _, last = key.removesuffix("_masks").removesuffix("_mask").rpartition("_")
        if split_name(last):
            sets.setdefault(prefix, {})[str(split_name(last))] = array
    if not sets:
        raise InputError(f"{path} has no arrays train, valid and test")
    if wanted and set_name not in sets:
        raise InputError(f"{path} has no split set {set_name!r}{nearest(set_name, sets)}; it has: {', '.join(sets)}")
    if not wanted and len(sets) > 1:
        raise InputError(f"{path} has several split sets: choose one with split=NAME out of {', '.join(sets)}")
    chosen = sets[set_name if wanted else next(iter(sets))]
    if number and not number.isdigit():
        raise InputError(f"split {wanted!r}: write the number of the mask after the colon")
    return {name: _one_mask(array, int(number or 0), path) for name, array in chosen.items()}


def _one_mask(array: Array, number: int, path: PathLike) -> Array:
    if array.ndim != 2:
        return array
    masks = array if array.shape[0] <= array.shape[1] else array.T
    if number >= len(masks):
        raise InputError(f"{path} holds {len(masks)} masks, number {number} was asked for (they count from 0)")
    return np.asarray(masks[number])


def made_split(
    labels: Array, labelled: Array, fractions: tuple[float, float, float], seed: int, stratify: bool
) -> Array:
    """A random split of the labelled nodes; `stratify` keeps the class proportions in every part."""
    _check_fractions(fractions)
    nodes = np.flatnonzero(labelled)
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(nodes)
    if len(nodes) == 0:
        return np.zeros(len(labelled), dtype=np.uint8)
    if stratify:
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ConfigError("a stratified split needs one class per node: set stratify=false for these labels")
        shuffled = shuffled[np.argsort(labels[shuffled], kind="stable")]
        sizes = np.bincount(labels[shuffled])
        # a random start per class: with a fixed one, every class of one node would land in the same part
        position = (_rank_within_class(labels[shuffled]) + rng.random(len(sizes))[labels[shuffled]]) / sizes[
            labels[shuffled]
        ]
    else:
        position = (np.arange(len(nodes)) + 0.5) / len(nodes)
    return _assign_parts(len(labelled), shuffled, position, fractions)


def split_by_time(times: Array, labelled: Array, fractions: tuple[float, float, float]) -> Array:
    """A split of the labelled nodes from the oldest (train) to the newest (test). Nodes of equal time are in the same
    part; nodes without a time (NaN) are in no part."""
    _check_fractions(fractions)
    nodes = np.flatnonzero(labelled & ~np.isnan(times))
    _, first, counts = np.unique(times[nodes], return_inverse=True, return_counts=True)
    position = (np.cumsum(counts) - counts / 2)[first] / max(1, len(nodes))
    return _assign_parts(len(labelled), nodes, position, fractions)


def split_by_group(groups: Array, labelled: Array, fractions: tuple[float, float, float], seed: int) -> Array:
    """A random split of groups (integers): labelled nodes of a group are in the same part."""
    _check_fractions(fractions)
    nodes = np.flatnonzero(labelled)
    _, group, counts = np.unique(groups[nodes], return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(counts))
    middle = np.empty(len(counts))
    middle[order] = np.cumsum(counts[order]) - counts[order] / 2
    return _assign_parts(len(labelled), nodes, middle[group] / max(1, len(nodes)), fractions)


def _assign_parts(num_nodes: int, nodes: Array, position: Array, fractions: tuple[float, float, float]) -> Array:
    """uint8: the part of each node according to its position between 0 and 1."""
    bounds = np.cumsum(fractions)[:2]
    if fractions[2] == 0:
        bounds[1] = np.inf
    split = np.zeros(num_nodes, dtype=np.uint8)
    split[nodes] = 1 + np.searchsorted(bounds, position, side="right").astype(np.uint8)
    return split


def _check_fractions(fractions: tuple[float, float, float]) -> None:
    if min(fractions) < 0 or abs(sum(fractions) - 1.0) > 1e-6 or fractions[0] <= 0:
        raise ConfigError(f"split fractions {fractions} must be positive and sum to 1, for example 0.5,0.25,0.25")


def _rank_within_class(sorted_labels: Array) -> Array:
    """Index within each run of equal labels: 0, 1, 2, …"""
    starts = np.flatnonzero(np.r_[True, sorted_labels[1:] != sorted_labels[:-1]])
    lengths = np.diff(np.r_[starts, len(sorted_labels)])
    return np.arange(len(sorted_labels)) - np.repeat(starts, lengths)
