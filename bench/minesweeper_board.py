"""What the fields around a field of minesweeper can tell at all: a convolutional network that sees them in their order
on the board, which no model of a graph does. The ceiling that docs/accuracy.md compares with.

    python bench/minesweeper_board.py --data data/minesweeper --around 1 2 4 --splits 2

FOLDER has x.npy, y.npy and splits.npz as bench/baselines.py takes them, of a square board of 100 by 100 fields in the
public file; node 100·i + j is the field in row i, column j.
Where labels are told, those are the training labels among the fields, never that of the field in the middle. ROC-AUC at
the epoch that validation chose, mean of the splits. Half a minute a row on one core, four with four fields around.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

BATCH = 250
WAYS = 8
"""To turn and to mirror a square."""


def windows(x: Any, y: Any, train: Any, around: int, labels: bool) -> Tensor:
    """[fields, channels, side, side] what is seen of each field: features, known labels, and where the board ends."""
    known = np.zeros((len(y), 2), dtype=np.float32)
    if labels:
        known[train, 0], known[train, 1] = 1, y[train]
    board = np.concatenate([x, known, np.ones((len(y), 1), dtype=np.float32)], axis=1).T
    board = board.reshape(len(board), *[math.isqrt(len(y))] * 2)
    padded = torch.from_numpy(np.pad(board, ((0, 0), (around, around), (around, around))))
    side = 2 * around + 1
    seen = padded.unfold(1, side, 1).unfold(2, side, 1).permute(1, 2, 0, 3, 4)
    seen = seen.reshape(len(y), len(board), side, side).clone()
    seen[:, x.shape[1] : x.shape[1] + 2, around, around] = 0  # its own label
    return seen


def network(channels: int, around: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(around):
        layers += [nn.Conv2d(channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU()]
        channels = 64
    layers += [nn.Dropout2d(0.2), nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 1, 1), nn.Flatten(0)]
    return nn.Sequential(*layers)


def turned(seen: Tensor, way: int) -> Tensor:
    seen = torch.rot90(seen, way % 4, (2, 3))
    return seen.flip(3) if way >= WAYS // 2 else seen


def score(
    x: Any, y: Any, split: dict[str, Any], around: int, labels: bool, seed: int, epochs: int
) -> tuple[float, float]:
    """(valid, test) of one split."""
    torch.manual_seed(seed)
    seen, truth = windows(x, y, split["train"], around, labels), torch.from_numpy(y.astype(np.float32))
    net, train = network(seen.shape[1], around), torch.from_numpy(np.flatnonzero(split["train"]))
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * (len(train) // BATCH))
    best = (0.0, 0.0)
    for epoch in range(epochs):
        net.train()
        order = train[torch.randperm(len(train))]
        for start in range(0, len(order) - BATCH + 1, BATCH):
            some = order[start : start + BATCH]
            logits = net(turned(seen[some], int(torch.randint(WAYS, (1,)))))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, truth[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 5 == 4:
            net.eval()
            with torch.no_grad():
                every = [torch.cat([net(turned(part, way)) for part in seen.split(2000)]) for way in range(WAYS)]
            said = torch.stack(every).sum(dim=0).numpy()
            valid, test = (float(roc_auc_score(y[split[name]], said[split[name]])) for name in ("val", "test"))
            best = max(best, (valid, test))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--around", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60, help="a multiple of 5")
    args = parser.parse_args()
    x, y = np.load(args.data / "x.npy").astype(np.float32), np.load(args.data / "y.npy")
    masks = np.load(args.data / "splits.npz")
    print(f"{'fields around':<16}{'labels':<10}{'valid':>8}{'test':>8}")
    names = ("train", "val", "test")
    for around in args.around:
        for labels in (False, True):
            found = [
                score(x, y, {name: masks[f"{name}_masks"][n] for name in names}, around, labels, n, args.epochs)
                for n in range(args.splits)
            ]
            valid, test = 100 * np.mean(found, axis=0)
            print(f"{around:<16}{'told' if labels else '–':<10}{valid:>8.2f}{test:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
