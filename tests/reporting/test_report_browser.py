"""The page in a browser: charts draw, a hover answers, and no request leaves. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from browser_helpers import CHROMIUM, answer, browse, driven
from largegt.reporting.page import report
from largegt.training.trainer import train
from run_helpers import easy_store, one_thread, small  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

_LOCAL = ("file:", "data:", "about:", "chrome:", "devtools:")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    store = easy_store(folder / "g")
    names = ("mlp", "largegt-full")
    runs = [train(store, small(f"model.name={name}"), folder / name).path for name in names]
    return report(runs, folder / "page.html", title="<script>document.title = 'owned'</script>")


def test_charts_draw_and_no_request_leaves(page: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    dom = browse(page, tmp_path, f"--log-net-log={log}")
    charts = re.findall(r'<svg[^>]*class="chart".*?</svg>', dom, re.DOTALL)
    assert len(charts) >= 12
    assert all(re.search(r'<(path|polyline|rect)[^>]*(d|points|width)="[^"]+"', chart) for chart in charts)
    assert "NaN" not in "".join(charts)
    assert "owned" not in re.sub(r"<title>.*?</title>|<h1>.*?</h1>", "", dom, flags=re.DOTALL)
    started = [
        event["params"]["url"]
        for event in json.loads(log.read_text())["events"]
        if isinstance(event.get("params"), dict) and "url" in event["params"]
    ]
    ours = [url for url in started if not url.startswith(_LOCAL)]
    assert not [url for url in ours if "google" not in url and "gstatic" not in url], "the browser's own calls aside"
    assert not re.search(r"https?://", re.sub(r"<pre>.*?</pre>", "", dom, flags=re.DOTALL))


@pytest.mark.parametrize("width", [1280, 390])
def test_layout_fits(page: Path, tmp_path: Path, width: int) -> None:
    """In a frame of that width: nothing wider than it, every chart with a size, text in charts large enough."""
    script = f"""
      document.body.style.maxWidth = document.body.style.width = '{width}px';
      const boxes = [...document.querySelectorAll('svg.chart')].map(one => one.getBoundingClientRect());
      const wide = [...document.querySelectorAll('main > *, section > *, figure, svg.chart')]
        .filter(one => one.getBoundingClientRect().right > document.body.getBoundingClientRect().right + 1);
      return [boxes.length, Math.min(...boxes.map(box => box.width)), Math.min(...boxes.map(box => box.height)),
        wide.length];
    """
    found = answer(browse(driven(page, tmp_path / "driven.html", script), tmp_path))
    assert isinstance(found, list)
    count, narrowest, lowest, wide = found
    assert count >= 12
    assert narrowest >= 300
    assert lowest >= 60
    assert wide == 0


def test_hovering_answers(page: Path, tmp_path: Path) -> None:
    script = """
      const tip = document.getElementById('tip');
      const hover = (part, share) => {
        const box = part.getBoundingClientRect();
        const place = { clientX: box.left + box.width * share, clientY: box.top + box.height * share, bubbles: true };
        part.dispatchEvent(new PointerEvent('pointermove', place));
        return tip.hidden ? '' : tip.textContent;
      };
      const lines = document.querySelector('svg.chart[data-x]');
      const cells = document.querySelector('svg.chart .heat');
      const dots = document.querySelector('svg.chart [data-tip]:not(.heat)');
      const map = document.querySelector('svg.chart[data-map]'), group = map.querySelector('.points');
      const [x, y] = group.getAttribute('d').slice(1).split(' ').map(parseFloat);
      const there = new DOMPoint(x, y).matrixTransform(map.getScreenCTM());
      const onto = { clientX: there.x, clientY: there.y, bubbles: true };
      group.dispatchEvent(new PointerEvent('pointermove', onto));
      const point = [tip.textContent, group.dataset.ids.split('|')[0] + '\\n' + group.dataset.n];
      return [hover(lines, .99), hover(cells, .5), hover(dots, .5), hover(document.querySelector('h1'), .5), point];
    """
    found = answer(browse(driven(page, tmp_path / "driven.html", script), tmp_path))
    assert isinstance(found, list)
    lines, cells, dots, heading, point = found
    assert point[0] == point[1]
    accuracy = json.loads((page.parent / "mlp" / "metrics.jsonl").read_text().splitlines()[-1])["valid"]["accuracy"]
    head, *rest = lines.split("\n")
    assert head == "epoch: 3"
    said = dict(row.rsplit(": ", 1) for row in rest)
    assert set(said) == {"mlp", "largegt-full"}
    assert float(said["mlp"]) == pytest.approx(accuracy, abs=2e-4)
    assert cells.startswith("true class: ")
    assert "nodes" in cells
    assert dots.startswith("mlp: ")
    assert heading == ""
