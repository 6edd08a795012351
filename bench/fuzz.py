"""Fuzz what users give us: files to ingest, manifests, recipes, overrides, command lines, checkpoints, a stranger's
folders.

    python bench/fuzz.py --cases 50000 --seed 0
    python bench/fuzz.py --only ingest,recipe --cases 2000
    python bench/fuzz.py --case ingest:1234 --seed 0        # one case again, with its traceback

Each case starts from something valid, disturbs it and hands it to the library in a forked worker with a limit on
memory and time. It must be accepted (and right, where there is something to compare with) or refused with a one-line
error; a traceback, a crash, a hang, a leap in memory or a wrong result is a bug, reported with its case, shrunk.
Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fuzzing.cases import ACCEPTED, BUG, REFUSED, RIGHT, Outcome, run_case, steps_of
from fuzzing.pool import Limits, fuzz, shrunk
from fuzzing.targets import SHARES, TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="cases in all, shared out over the kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(TARGETS), help="kinds, with commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", help="KIND:NUMBER: run this case in this process and show what happens")
    parser.add_argument("--messages", type=int, default=0, help="show so many different refusals of each kind")
    args = parser.parse_args()
    if args.case:
        raise SystemExit(_one(args.case, args.seed))
    kinds = args.only.split(",")
    total = sum(SHARES[kind] for kind in kinds)
    begin, bugs = time.perf_counter(), 0
    for kind in kinds:
        bugs += _all(kind, args.seed, round(args.cases * SHARES[kind] / total), args.workers, args.messages)
    print(f"{args.cases} cases in {time.perf_counter() - begin:.0f} s, {bugs} bugs")
    raise SystemExit(1 if bugs else 0)


def _all(kind: str, seed: int, count: int, workers: int, messages: int) -> int:
    """Run and report one kind; how many different bugs it has."""
    begin = time.perf_counter()
    verdicts: Counter[str] = Counter()
    bugs: dict[str, list[Outcome]] = {}
    refusals: dict[str, Outcome] = {}
    for outcome in fuzz(kind, TARGETS[kind], seed, range(count), workers, Limits()):
        verdicts[outcome.verdict] += 1
        if outcome.verdict == BUG:
            if outcome.signature not in bugs:
                print(f"  {kind}:{outcome.number} {outcome.signature}", file=sys.stderr, flush=True)
            bugs.setdefault(outcome.signature, []).append(outcome)
        elif outcome.verdict == REFUSED:
            refusals.setdefault(" ".join(outcome.detail.split()[1:5]), outcome)
    shown = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (RIGHT, ACCEPTED, REFUSED, BUG))
    print(f"{kind:<11}{count:>6} cases in {time.perf_counter() - begin:>4.0f} s: {shown}", flush=True)
    for refusal in list(refusals.values())[:messages]:
        print(f"    {refusal.number:>6}  {refusal.detail[:300]}")
    for signature, outcomes in bugs.items():
        first = outcomes[0]
        steps = shrunk(kind, TARGETS[kind], seed, first.number, steps_of(kind, seed, first.number), signature, Limits())
        print(f"  BUG {signature} ({len(outcomes)} times), case {kind}:{first.number}, steps {steps}")
        print("\n".join(f"      {line}" for line in first.detail.splitlines()[-6:]), flush=True)
    return len(bugs)


def _one(case: str, seed: int) -> int:
    kind, _, number = case.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_case(TARGETS[kind](Path(folder)), kind, seed, int(number))
    print(f"{outcome.verdict}: {outcome.signature}\n{outcome.detail}")
    return int(outcome.verdict == BUG)


if __name__ == "__main__":
    main()
