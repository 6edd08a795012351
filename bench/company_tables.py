"""Tables as companies and projects dump them, written as files: nodes with columns of every kind, edges by text ids.

    python bench/company_tables.py imdb --from movie_metadata.csv --out DIR
    python bench/company_tables.py debian --from dumpavail.txt --out DIR      # apt-cache dumpavail > dumpavail.txt
    python bench/company_tables.py company --nodes 600000 --edges 1300000 --seed 0 --format parquet --out DIR

The tables are for measuring and testing how `largegt ingest` takes numbers, categories, dates, flags, text and missing
cells. Each command writes nodes and edges, and prints their sizes, the classes and the share of cells that are missing.

- imdb: the films of the IMDB 5000 file. The label is the first genre of a film that is Action, Comedy or Drama, and
  `genres` is left out because the label comes from it. Two films are joined when they share the director, or an actor
  in any of the three places; one row per pair. Cliques are not capped: no person has more than some fifty films there.
- debian: packages; the label is Section, and a package points to what it depends on. Left out are Section itself and
  Filename (the path in the archive tells the component, which is a part of some sections), Source, Version and the
  checksums (names and numbers of a package, of which nothing general can be learned), and all fields about other
  packages: Depends and Pre-Depends are the edges. Virtual packages have no stanza and so no node. Tag,
  Maintainer and Description stay; in some rows one of their words is the section's name (`Debian Perl Group`).
- company: customers who pay each other, made up. `churn_reason` follows segment, city, year of signup and words of the
  notes; customers of one reason pay each other more often. CSV and Parquet of one seed hold the same values; in CSV
  dates are ISO, a third of the revenues from 1,000 on have commas, and a missing cell is empty.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

GENRES = ("Action", "Comedy", "Drama")
ACTORS = ("actor_1_name", "actor_2_name", "actor_3_name")
PACKAGE_COLUMNS = (
    "Priority", "Architecture", "Maintainer", "Installed-Size", "Size", "Description", "Multi-Arch", "Homepage", "Tag",
)  # fmt: skip

REASONS = ("price", "competitor", "poor service", "moved away", "no longer needed")
REASON_WORDS = (
    "expensive invoice discount fee overcharged budget cheaper raise tariff refund",
    "offer switched rival contract better app features bank deal comparison",
    "waiting complaint rude unanswered hotline broken late escalated ticket error",
    "relocation address abroad Zürich branch moving country closed distance mail",
    "retired sold dormant unused duplicate merged finished cancelled project inherited",
)
COMMON_WORDS = (
    'customer called about the account and asked for a reply by email "urgent" see file, agreed, to on we sent letter '
    "last week again account manager will follow up next month with documents café contact prefers phone no answer"
)
SEGMENTS = ("private", "student", "small business", "corporate", "public sector", "non-profit")
CITY_STARTS = "Ash Beck Clay Dun East Fair Glen Hart Iron King Lang Mill North Oak Red Stone Thorn Upper West York"
CITY_ENDS = "borough bridge bury dale field ford gate ham hill mouth port stead ton well wick"
KINDS = ("transfer", "invoice", "refund", "subscription")
TIERS = ("bronze", "silver", "gold", "platinum")
FIRST_NAMES = "ana ben chen dora emre fay gita hugo ines jan kofi lena mo nina omar pia ravi sara tom uma"
DOMAINS = ("example.com", "example.org", "mail.example.net")
FIRST_YEAR, NUM_YEARS = 2015, 10


def write_tables(
    out: Path, columns: Sequence[str], nodes: Iterable[Sequence[str]], edges: Iterable[Sequence[str]]
) -> tuple[Path, Path]:
    out.mkdir(parents=True, exist_ok=True)
    paths = (out / "nodes.csv", out / "edges.csv")
    for path, header, rows in zip(paths, (columns, ["source", "target"]), (nodes, edges), strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return paths


def imdb(source: Path, out: Path) -> tuple[Path, Path]:
    """Write nodes.csv and edges.csv of the films in the IMDB 5000 file; a film's id tells its row: m0001 is the first.

    The file holds some films twice. Each row is a film of its own here, as the row-based ids have it.
    """
    with source.open(newline="", encoding="utf-8-sig") as file:
        films = list(csv.DictReader(file))
    ids = [f"m{number:04d}" for number in range(1, len(films) + 1)]
    labels = [next((genre for genre in film["genres"].split("|") if genre in GENRES), "") for film in films]
    kept = [name for name in films[0] if name != "genres"]
    films_of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, film in enumerate(films):
        for role, name in {("director", film["director_name"]), *(("actor", film[place]) for place in ACTORS)}:
            if name:
                films_of[role, name].append(row)
    pairs = sorted({pair for rows in films_of.values() for pair in combinations(rows, 2)})
    rows = zip(ids, films, labels, strict=True)
    nodes = ([name, *(film[column] for column in kept), label] for name, film, label in rows)
    return write_tables(out, ["id", *kept, "label"], nodes, ([ids[a], ids[b]] for a, b in pairs))


def stanzas(source: Path) -> Iterator[dict[str, str]]:
    """The fields of each stanza; lines that go on are joined by a space, and the lone dots of empty lines dropped."""
    for stanza in re.split(r"\n\s*\n", source.read_text(encoding="utf-8").strip()):
        lines = re.sub(r"\n[ \t]+(\.(?=\n|$))?", " ", stanza).split("\n")
        yield {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}


def depended_on(package: dict[str, str]) -> list[str]:
    """Names in Depends and Pre-Depends, without versions and architectures; all of the alternatives."""
    text = f"{package.get('Pre-Depends', '')},{package.get('Depends', '')}"
    plain = re.sub(r"\([^)]*\)|\[[^\]]*\]|<[^>]*>", "", text)
    return [name.split(":")[0].strip() for name in re.split(r"[,|]", plain)]


def debian(source: Path, out: Path) -> tuple[Path, Path]:
    """Write nodes.csv and edges.csv of the packages in the output of `apt-cache dumpavail`.

    A package that has several stanzas is its first. A column that no stanza has is left out.
    """
    packages: dict[str, dict[str, str]] = {}
    for stanza in stanzas(source):
        packages.setdefault(stanza["Package"], stanza)
    columns = [column for column in PACKAGE_COLUMNS if any(column in package for package in packages.values())]
    nodes = (
        [name, *(package.get(column, "") for column in columns), package.get("Section", "")]
        for name, package in packages.items()
    )
    edges = (
        [name, target]
        for name, package in packages.items()
        for target in dict.fromkeys(depended_on(package))
        if target in packages and target != name
    )
    return write_tables(out, ["id", *columns, "label"], nodes, edges)


def pick(values: Sequence[str] | str, at: Any) -> Any:
    """The values at positions; a text stands for its words."""
    return pa.array(values.split() if isinstance(values, str) else values).take(pa.array(at))


def joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")


def digits(numbers: Any, width: int) -> Any:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


def some_missing(random: np.random.Generator, values: Any, share: float) -> Any:
    values = values if isinstance(values, pa.Array) else pa.array(values)
    return pc.if_else(pa.array(random.random(len(values)) >= share), values, pa.scalar(None, values.type))


def with_commas(numbers: Any, which: Any) -> Any:
    """Numbers as text, some of them with commas between thousands."""
    plain = pc.cast(numbers, pa.string())
    grouped = plain
    for _ in range(4):  # each time one more comma, from the right
        grouped = pc.replace_substring_regex(grouped, r"^(\d+)(\d{3})((,\d{3})*)$", r"\1,\2\3")
    return pc.if_else(pa.array(which), grouped, plain)


def notes_of(random: np.random.Generator, reasons: Any) -> Any:
    """Three to twenty words a customer, a quarter of them from the words of the reason."""
    lengths = random.integers(3, 21, len(reasons))
    vocabulary = [word for words in REASON_WORDS for word in words.split()]
    num_reason, num_words = len(vocabulary) // len(REASONS), lengths.sum()
    own = np.repeat(reasons, lengths) * num_reason + random.integers(0, num_reason, num_words)
    common = len(vocabulary) + random.integers(0, len(COMMON_WORDS.split()), num_words)
    words = pick([*vocabulary, *COMMON_WORDS.split()], np.where(random.random(num_words) < 0.25, own, common))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, words), " ")


def customers(random: np.random.Generator, count: int) -> tuple[Any, Any]:
    """The node table, and the reason of each customer, also of those whose reason the table does not tell."""
    segment = random.choice(len(SEGMENTS), count, p=[0.4, 0.15, 0.2, 0.1, 0.1, 0.05])
    cities = [start + end for start in CITY_STARTS.split() for end in CITY_ENDS.split()]
    shares = 1 / np.arange(1, len(cities) + 1)
    city = random.choice(len(cities), count, p=shares / shares.sum())
    day = random.integers(0, 365 * NUM_YEARS, count)
    logits = random.gumbel(size=(count, len(REASONS))) + np.log([0.35, 0.25, 0.18, 0.12, 0.1])
    for values, num_values, strength in (
        (segment, len(SEGMENTS), 1.0), (city, len(cities), 0.8), (day // 365, NUM_YEARS, 0.6),
    ):  # fmt: skip
        logits += random.normal(0, strength, (num_values, len(REASONS)))[values]
    reasons = logits.argmax(axis=1)
    number = random.permutation(4 * count)  # ids are in no order, with gaps between them
    signup = np.datetime64(f"{FIRST_YEAR}-01-01") + day.astype("timedelta64[D]")
    span_s = (np.datetime64(f"{FIRST_YEAR + NUM_YEARS + 1}-01-01") - signup) // np.timedelta64(1, "s")
    seen = signup.astype("datetime64[s]") + (span_s * random.random(count)).astype("timedelta64[s]")
    names, domains = random.integers(0, 20, count), random.integers(0, len(DOMAINS), count)
    columns = {
        "id": joined("cust-", digits(number[:count], 8)),
        "segment": pick(SEGMENTS, segment),
        "city": some_missing(random, pick(cities, city), 0.02),
        "signup_date": pa.array(signup),
        "last_seen": some_missing(random, seen, 0.05),
        "is_active": pa.array(random.random(count) < 0.3 + 0.1 * reasons),
        "age": some_missing(random, np.clip(random.normal(46, 16, count), 18, 99).astype(np.int64), 0.12),
        "balance": pa.array(np.round(random.normal(0, 1, count) * random.lognormal(7, 1, count), 2)),
        "revenue": some_missing(random, random.lognormal(8, 1.8, count).astype(np.int64), 0.03),
        "notes": some_missing(random, notes_of(random, reasons), 0.15),
        "email": joined(pick(FIRST_NAMES, names), digits(number[-count:], 1), "@", pick(DOMAINS, domains)),
        "tier": some_missing(random, pick(TIERS, random.integers(0, len(TIERS), count)), 0.85),
        "currency": pick(["EUR"], np.zeros(count, dtype=np.int64)),
        "churn_reason": some_missing(random, pick(REASONS, reasons), 0.4),
    }
    return pa.table(columns), reasons


def payments(random: np.random.Generator, ids: Any, reasons: Any, count: int) -> Any:
    """The edge table: few customers have many payments, most payees are of the payer's reason, every tenth row repeats
    an earlier pair, and no customer pays itself (two customers or more are needed)."""
    num_nodes = len(reasons)
    order = random.permutation(num_nodes)
    order = order[np.argsort(reasons[order], kind="stable")]  # those of a reason together, in no other order
    sizes = np.bincount(reasons, minlength=len(REASONS))
    starts = np.cumsum(sizes) - sizes
    payer = random.permutation(num_nodes)[(num_nodes * random.random(count) ** 1.5).astype(np.int64)]
    reason = np.where(random.random(count) < 0.6, reasons[payer], reasons[random.integers(0, num_nodes, count)])
    payee = order[starts[reason] + (sizes[reason] * random.random(count) ** 2).astype(np.int64)]
    payee = np.where(payee == payer, (payee + 1) % num_nodes, payee)
    earlier = np.arange(count) * np.where(random.random(count) < 0.1, random.random(count), 1)
    payer, payee = (ends[earlier.astype(np.int64)] for ends in (payer, payee))
    paid = np.datetime64("2020-01-01") + random.integers(0, 365 * 6, count).astype("timedelta64[D]")
    columns = {
        "payer": ids.take(pa.array(payer)),
        "payee": ids.take(pa.array(payee)),
        "amount": pa.array(np.round(0.01 + random.lognormal(4, 1.2, count), 2)),
        "kind": pick(KINDS, random.choice(len(KINDS), count, p=[0.5, 0.3, 0.05, 0.15])),
        "paid_on": pa.array(paid),
    }
    return pa.table(columns)


def company(out: Path, nodes: int, edges: int, seed: int = 0, format: str = "csv") -> tuple[Path, Path]:
    """Write nodes and edges of a made-up company; as CSV, or typed as Parquet with the same values."""
    random = np.random.default_rng(seed)
    table, reasons = customers(random, nodes)
    paid = payments(random, table["id"].combine_chunks(), reasons, edges)
    commas = random.random(nodes) < 1 / 3
    out.mkdir(parents=True, exist_ok=True)
    paths = (out / f"nodes.{format}", out / f"edges.{format}")
    if format == "parquet":
        for path, rows in zip(paths, (table, paid), strict=True):
            pq.write_table(rows, path)
        return paths
    seen = pc.strftime(table["last_seen"], "%Y-%m-%dT%H:%M:%S")
    for name, column in (("last_seen", seen), ("revenue", with_commas(table["revenue"], commas))):
        table = table.set_column(table.schema.get_field_index(name), name, column)
    for path, rows in zip(paths, (table, paid), strict=True):
        duckdb.from_arrow(rows).write_csv(str(path), header=True)
    return paths


def facts(paths: tuple[Path, Path], label: str) -> str:
    """Sizes, classes and the share of missing cells of tables that were written."""
    reads = [f"read_csv('{path}', all_varchar=true)" if path.suffix == ".csv" else f"'{path}'" for path in paths]
    nodes, edges = (duckdb.sql(f"SELECT * FROM {read}") for read in reads)
    (filled,) = nodes.aggregate(", ".join(f'count("{name}")' for name in nodes.columns)).fetchall()
    size = filled[0]
    counts = nodes.aggregate(f'"{label}", count(*) AS size', f'"{label}"').order("size DESC").fetchall()
    classes = [f"{name} {count:,}" for name, count in counts if name is not None]
    missing = [f"{name} {1 - count / size:.1%}" for name, count in zip(nodes.columns, filled, strict=True)]
    first = f"{size:,} nodes, {len(edges):,} edges, {filled[nodes.columns.index(label)]:,} nodes with a label"
    return f"{first}\n{len(classes)} classes: {', '.join(classes)}\nmissing: {', '.join(missing)}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("imdb", "debian"):
        commands.add_parser(name).add_argument("--from", dest="source", type=Path, required=True)
    made_up = commands.add_parser("company")
    for name, default in (("nodes", 600_000), ("edges", 1_300_000), ("seed", 0)):
        made_up.add_argument(f"--{name}", type=int, default=default)
    made_up.add_argument("--format", choices=("csv", "parquet"), default="csv")
    for command in commands.choices.values():
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(words)
    start = time.perf_counter()
    if args.command == "company":
        paths = company(args.out, args.nodes, args.edges, args.seed, args.format)
    else:
        paths = (imdb if args.command == "imdb" else debian)(args.source, args.out)
    print(f"{paths[0]} and {paths[1]} written in {time.perf_counter() - start:.1f} s")
    print(facts(paths, "churn_reason" if args.command == "company" else "label"))


if __name__ == "__main__":
    main()
