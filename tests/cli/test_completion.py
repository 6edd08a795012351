"""Shell completion, asked as a shell asks: a real process, with the words in its environment."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import largegt
from largegt.config.models import model_names, overrides_read
from largegt.config.overrides import parse_overrides, setting_names
from largegt.config.recipes import recipe_names
from largegt.config.schema import Config, IngestConfig
from largegt.datasets.registry import DATASETS
from run_helpers import easy_store

pytestmark = pytest.mark.slow

HEAVY = ("torch", "numba", "pyarrow", "scipy", "lightning", "matplotlib")
COMMAND = [
    sys.executable, "-c",
    "import atexit, sys; sys.argv[0] = 'largegt'\n"
    f"atexit.register(lambda: print(*(m for m in {HEAVY} if m in sys.modules), file=sys.stderr))\n"
    "from largegt.cli import main; main()",
]  # fmt: skip


def asked(words: list[str], folder: Path, **variables: str) -> list[str]:
    """What a process answers; it must not load what takes seconds."""
    env = os.environ | {"PYTHONPATH": str(Path(largegt.__file__).parents[1])} | variables
    done = subprocess.run([*COMMAND, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return done.stdout.splitlines()


def offered(line: str, folder: Path) -> list[str]:
    """What bash is told when TAB is pressed at the end of the line."""
    words = line.split(" ")
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_LARGEGT_COMPLETE": "complete_bash"}
    return [name for name in asked([], folder, **variables) if name]


def test_verbs_and_options(tmp_path: Path) -> None:
    assert offered("largegt pre", tmp_path) == ["prepare", "predict"]
    assert "--recipe" in offered("largegt train --r", tmp_path)


def test_recipes_models_and_datasets(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    assert offered("largegt train g --recipe ", tmp_path) == [*recipe_names(), "auto", "mine.toml"]
    assert offered("largegt prepare g --recipe mi", tmp_path) == ["mine.toml"]
    assert offered("largegt tune g --model goat", tmp_path) == [n for n in model_names() if n.startswith("goat")]
    assert offered("largegt datasets download ", tmp_path) == list(DATASETS)
    assert offered("largegt generate --like snap", tmp_path) == ["snap-patents"]
    assert offered("largegt reproduce all --dataset ogbn-pr", tmp_path) == ["ogbn-products"]


def test_settings_come_with_their_default_and_then_with_their_values(tmp_path: Path) -> None:
    found = offered("largegt train g --set tr", tmp_path)
    assert [item.partition("=")[0] for item in found] == [n for n in setting_names(Config) if n.startswith("tr")]
    assert "train.epochs=30" in found
    assert offered("largegt train g --set train.dev", tmp_path) == [
        f"train.device={value}" for value in ("auto", "cpu", "cuda")
    ]
    assert offered("largegt ingest e.csv --set undir", tmp_path) == ["undirected=true", "undirected=false"]
    assert offered("largegt ingest e.csv --set ingest.split_s", tmp_path) == ["ingest.split_seed=0"]
    assert offered("largegt train g --set undir", tmp_path) == []


def test_every_offer_is_a_setting_as_it_stands(tmp_path: Path) -> None:
    every = offered("largegt train g --set ", tmp_path)
    for name in model_names():
        settings = [item for item in every if not item.startswith("model.name=")]
        assert Config.from_recipe("base", [f"model.name={name}", *overrides_read(settings, name)]).model.name == name
    assert parse_overrides(IngestConfig, offered("largegt ingest --set ", tmp_path)) == IngestConfig()


def test_stores_and_files_are_left_to_the_shell(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    assert offered("largegt train gra", tmp_path) == []


def test_zsh_and_fish_get_names_with_what_they_are(tmp_path: Path) -> None:
    line = {"_TYPER_COMPLETE_ARGS": "largegt train g --set train.device=c"}
    zsh = "\n".join(asked([], tmp_path, _LARGEGT_COMPLETE="complete_zsh", **line))
    assert '"train.device=cpu":"Where to train."' in zsh
    fish = asked([], tmp_path, _LARGEGT_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **line)
    assert fish == ["train.device=cpu\tWhere to train.", "train.device=cuda\tWhere to train."]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str, tmp_path: Path) -> None:
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    script = "\n".join(asked(["--show-completion", shell], tmp_path, **variables))
    assert f"_LARGEGT_COMPLETE=complete_{shell}" in script
    asked(["--install-completion", shell], tmp_path, **variables)
    written = {"bash": ".bash_completions/largegt.sh", "zsh": ".zfunc/_largegt",
               "fish": ".config/fish/completions/largegt.fish"}[shell]  # fmt: skip
    assert (tmp_path / written).read_text().strip() == script.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_itself_completes(tmp_path: Path) -> None:
    """The installed script in a real bash, which calls a real `largegt`."""
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    asked(["--install-completion", "bash"], tmp_path, **variables)
    program = tmp_path / "bin" / "largegt"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom largegt.cli import main\nmain()\n")
    program.chmod(0o755)
    code = (
        'source "$HOME/.bashrc"; COMP_WORDS=(largegt train g --set train.epo); COMP_CWORD=4\n'
        'complete -p largegt; _largegt_completion largegt; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{program.parent}:{os.environ['PATH']}"
    env = os.environ | {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(Path(largegt.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["train.epochs=30"], done.stderr


def test_somebody_at_a_terminal_is_told_what_begins(tmp_path: Path) -> None:
    """The first training on a machine: what is compiled and where it is kept, where the run will be."""
    store = easy_store(tmp_path / "g").path
    env = os.environ | {
        "PYTHONPATH": str(Path(largegt.__file__).parents[1]), "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "COLUMNS": "200", "TERM": "xterm",
    }  # fmt: skip
    words = ["train", str(store), "--out", str(tmp_path / "r"), "--model", "mlp", "--epochs", "1", "--device", "cpu"]
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "largegt", *words], env=env, stderr=theirs) as process:
        os.close(theirs)
        with open(ours, "rb") as terminal:
            said = [terminal.readline().decode().strip() for _ in range(2)]
            process.kill()
            with suppress(OSError):  # a terminal whose other end is closed ends so
                while terminal.read(1000):
                    pass
    assert said[0].startswith("note: the first run compiles its kernels, once")
    assert str(tmp_path / "numba") in said[0]
    assert said[1] == (
        f"Training mlp on g, 75 training nodes, 1 epoch at most. The run will be in {tmp_path / 'r'}; "
        "Ctrl-C stops it, --resume goes on."
    )
