"""The README's commands and Python, executed as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from run_helpers import Cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.startswith("largegt ")]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the files that the README names: a graph of two topics."""
    rng = np.random.default_rng(0)
    size = 120
    topic = rng.integers(2, size=size)
    ends = rng.integers(size, size=(2, 1500))
    ends = ends[:, topic[ends[0]] == topic[ends[1]]]
    features = (rng.normal(size=(size, 4)) + topic[:, None]).astype(np.float32)
    names = np.array([f"page {number}" for number in range(size)])
    pa.parquet.write_table(pa.table({"source": names[ends[0]], "target": names[ends[1]]}), tmp_path / "edges.parquet")
    nodes = {"id": names, **{f"f{c}": features[:, c] for c in range(4)}, "topic": np.array(["art", "sport"])[topic]}
    with pa.CompressedOutputStream(str(tmp_path / "nodes.csv.gz"), "gzip") as stream:
        pa.csv.write_csv(pa.table(nodes), stream)
    np.save(tmp_path / "edge_index.npy", ends)
    np.save(tmp_path / "x.npy", features)
    np.save(tmp_path / "y.npy", topic)
    return tmp_path


def test_the_commands_of_the_readme(desk: Path, monkeypatch: pytest.MonkeyPatch, lg: Cli) -> None:
    monkeypatch.chdir(desk)
    assert len(commands()) >= 6
    for line in commands():
        words = shlex.split(line)[1:]
        if "auto" in words:
            words += ["--epochs", "5"]  # of sixty, with so few labels
        words = [{"30m": "5s"}.get(word, word) for word in words]  # the paper's recipe has 500 epochs
        done = lg(*words)
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
    predictions = pa.parquet.read_table(desk / "predictions.parquet")
    assert predictions.column_names == ["node", "label", "probability"]
    assert predictions["node"][7].as_py() == "page 7"
    assert set(predictions["label"].to_pylist()) <= {"art", "sport"}
    assert "<svg" in (desk / "report.html").read_text()


def test_the_readme_is_short_and_its_links_lead_to_files() -> None:
    assert len(README.split()) <= 1200
    links = re.findall(r'(?:\]\(|src="|srcset=")(?!https?:)([^)#"]+)', README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_python_of_the_readme(desk: Path) -> None:
    head = (
        "import numpy as np\n"
        "edge_index, features, labels = (np.load(f) for f in ('edge_index.npy', 'x.npy', 'y.npy'))\n"
        "labels = labels + (np.arange(len(labels)) % 3 == 0)\n"  # three classes
    )
    (desk / "readme.py").write_text(head + "\n".join(blocks("python")) + "\nassert table.num_rows == 120\n")
    done = subprocess.run([sys.executable, "readme.py"], cwd=desk, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
