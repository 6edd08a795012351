"""Report: run folders → one HTML page that needs no network and no other file.

Enters: run folders. Leaves: a page with a table of results and the learning curves. Every string from a run is
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from ..errors import InputError, disk_errors
from ..folder import write_text_atomically
from ..training.run import Run
from ..types import PathLike
from .figures import curves, losses

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1f2933;max-width:60rem;margin:2.5rem auto;padding:0 1.25rem}
h1{font-size:1.7rem;margin-bottom:.2rem} h2{font-size:1.15rem;margin-top:2.2rem} .lead{color:#52606d;margin-top:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.4rem .6rem;border-bottom:1px solid #e4e7eb}
th:first-child,td:first-child{text-align:left}
thead th{border-bottom:2px solid #7b8794;font-weight:600} tr.best td{font-weight:700}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:1rem}
.figures figure{margin:0} .figures svg{width:100%;height:auto}
figcaption{color:#52606d;font-size:.9rem} details pre{background:#f5f7fa;padding:1rem;overflow:auto;font-size:.85rem}
"""


def report(
    runs: Iterable[PathLike],
    out: PathLike = "report.html",
    title: str = "largegt report",
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> Path:
    """Write the page. `baselines` adds rows that have no run, such as the majority class."""
    opened = [Run.open(path) for path in runs]
    if not opened:
        raise InputError("no run folders given: largegt report runs/*")
    metric = _main_metric(opened[0].metrics)
    datasets = sorted({str(run.metrics["dataset"]) for run in opened})
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">Node prediction on {escape(", ".join(datasets))}. Each score is at the epoch that was best '
        "on validation; the test nodes were read once, for it.</p>",
        _table(opened, metric, baselines or {}),
        '<h2>Learning curves</h2><div class="figures">',
        f"<figure>{curves(opened, metric)}<figcaption>Validation {escape(metric)} by epoch; the ring marks the epoch "
        "that was kept.</figcaption></figure>",
        f"<figure>{curves(opened, metric, x='seconds')}<figcaption>The same over training time.</figcaption></figure>",
        f"<figure>{losses(opened)}<figcaption>Loss on training and validation nodes.</figcaption></figure>",
        "</div><h2>Settings</h2>",
        *(_settings(run) for run in opened),
    ]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )
    with disk_errors(out):
        Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(out, page)
    return Path(out)


def _main_metric(metrics: Mapping[str, Any]) -> str:
    """The metric the table leads with: the first that is not the loss."""
    scores = metrics["test"] or metrics["valid"]
    if not scores:
        raise InputError("these runs have no validation or test nodes, so there is nothing to report")
    for name in ("accuracy", "roc_auc", "rmse"):
        if name in scores:
            return name
    return str(next(iter(scores)))


def _table(runs: list[Run], metric: str, baselines: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        (name, None, scores.get("valid"), scores.get("test"), None, None, None) for name, scores in baselines.items()
    ]
    for run in runs:
        m = run.metrics
        rows.append((
            run.path.name, m["model"], m["valid"].get(metric), m["test"].get(metric), m["best_epoch"],
            m["train_time_s"], m["num_parameters"],
        ))  # fmt: skip
    known = [row[2] for row in rows if row[2] is not None]
    top = (min(known) if metric == "rmse" else max(known)) if known else None
    body = "".join(_row(row, best=top is not None and row[2] == top) for row in rows)
    heads = ("run", "model", f"valid {metric}", f"test {metric}", "best epoch", "training, s", "parameters")
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: tuple[Any, ...], best: bool) -> str:
    name, model, valid, test, epoch, train_s, num_parameters = row
    cells = [
        escape(str(name)),
        escape(model or "–"),
        _number(valid),
        _number(test),
        "–" if epoch is None else str(epoch),
        "–" if train_s is None else f"{train_s:.1f}",
        "–" if num_parameters is None else f"{num_parameters:,}",
    ]
    return f"<tr{' class=best' if best else ''}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _settings(run: Run) -> str:
    text = (run.path / "config.toml").read_text(encoding="utf-8")
    return f"<details><summary>{escape(run.path.name)}</summary><pre>{escape(text)}</pre></details>"
