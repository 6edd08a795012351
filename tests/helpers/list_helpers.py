"""Neighbour lists from elsewhere against those of the store."""

from __future__ import annotations

import numpy as np

from largegt.preprocessing.sampling.neighbor_lists import MappedCSR, NeighborLists


def answers_alike(lists: NeighborLists, mapped: MappedCSR) -> None:
    """Every question, both ways round, is answered as by the store; also about no node at all."""
    rng = np.random.default_rng(0)
    num_nodes = mapped.num_nodes
    for ours, other in ((lists, mapped), (lists.reverse, mapped.reverse)):
        nodes = np.sort(rng.choice(num_nodes, 200, replace=False))
        for found, expected in zip(ours.neighbors(nodes), other.neighbors(nodes), strict=True):
            assert np.array_equal(found, expected)
        assert np.array_equal(ours.degrees(nodes), other.degrees(nodes))
        asked, others = rng.integers(0, num_nodes, (2, 900))
        assert np.array_equal(ours.has(asked, others), other.has(asked, others))
        asked = asked[other.degrees(asked) > 0]
        places = rng.integers(0, other.degrees(asked))
        assert np.array_equal(ours.at(asked, places), other.at(asked, places))
        none = nodes[:0]
        empty = (ours.neighbors(none)[1], ours.degrees(none), ours.has(none, none), ours.at(none, none))
        assert [len(answer) for answer in empty] == [0] * 4
