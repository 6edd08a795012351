"""The paper's three datasets by name: what they are, where they come from, where their files belong.

Enters: a name, the folder that datasets lie in. Leaves: a `Dataset`, its `Source`, its store. Cost: listing reads
nothing but whether files exist; loaders are imported when they are asked for.

A dataset lies in `ROOT/FOLDER` as its authors ship it: `ROOT/ogbn_products/raw/edge.csv.gz`, say. `ROOT` may also be
that folder itself, or hold it under the name it has in the authors' archive.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from largegt.errors import ConfigError, InputError, nearest
from largegt.runtime.memory import format_bytes
from largegt.runtime.text import quoted
from largegt.types import PathLike

if TYPE_CHECKING:
    from largegt.config.schema import IngestConfig
    from largegt.data.parts import Source
    from largegt.data.store import GraphStore


@dataclass(frozen=True)
class Dataset:
    """One dataset. Counts are those of its files, as the paper gives them."""

    name: str
    description: str
    num_nodes: int
    num_edges: int
    directed: bool
    """Undirected datasets list each edge once; ingest adds the inverse."""
    num_features: int
    num_classes: int
    split_sizes: tuple[int, int, int]
    """Train, valid and test; nodes beyond them have no label."""
    split: str
    licence: str
    homepage: str
    folder: str
    """Where the files belong below the root."""
    files: tuple[str, ...]
    """What a loader reads, below the folder."""
    url: str
    archive: str
    """What the address gives is called: a zip that holds the files, or the one file itself."""
    aliases: tuple[str, ...] = ()
    """What else the folder may be called."""
    begins_with: bytes = b"PK"
    """First bytes of what is downloaded: a web page that says no is not taken for it."""
    download_bytes: int | None = None
    """About how much is to be downloaded, where it is known."""
    checksum: str | None = None
    """`sha256:…` or `md5:…` of the download, where its authors publish one. None of these three has one, so the digest
    of the first download is noted, and later ones are held to it."""

    @property
    def is_zip(self) -> bool:
        return self.archive.endswith(".zip")

    @property
    def max_bytes(self) -> int:
        """No download may be larger: twice what is known of it, or a limit that is generous for its counts."""
        return 2 * (self.download_bytes or _MAX_UNKNOWN_BYTES)

    def target(self, root: PathLike) -> Path:
        """Where the download is written."""
        return (Path(root) if self.is_zip else self.find(root)) / self.archive

    def find(self, root: PathLike) -> Path:
        """The folder that holds the files: below `root`, or `root` itself; where it should be when there is none."""
        root, names = Path(root), (self.folder, *self.aliases)
        places = (*(root / name for name in names), root)
        usual = root if root.name in names else places[0]
        return next((place for place in places if any((place / file).is_file() for file in self.files)), usual)

    def missing(self, root: PathLike) -> list[str]:
        """The files that are not there, below the folder."""
        folder = self.find(root)
        return [file for file in self.files if not (folder / file).is_file()]

    def require(self, root: PathLike) -> Path:
        """The folder with all files in it; an error that says what to get and where to put it when one is not."""
        folder, missing = self.find(root), self.missing(root)
        if not missing:
            return folder
        raise InputError(f"{self.name} is not complete: {self.how_to_get(folder, missing)}{_pickles(folder)}")

    def how_to_get(self, folder: Path, missing: list[str]) -> str:
        """What to do by hand or by command so that `missing` files are there."""
        paths = ", ".join(str(folder / file) for file in missing)
        inside = f"; they are in {self.archive}" if self.is_zip else ""
        root = folder.parent if folder.name in (self.folder, *self.aliases) else folder
        return (
            f"missing {paths}{inside} from {self.url} (home page: {self.homepage}); "
            f"or run: largegt datasets download {self.name} --root {quoted(root)}"
        )


def _pickles(folder: Path) -> str:
    """A word on the caches of other tools, where they are all that is there."""
    found = sorted([*folder.glob("processed/*.pt"), *folder.glob("**/split_dict.pt"), *folder.glob("*.pt")])
    if not found:
        return ""
    return f". {found[0]} is a pickle, which can run any code when it is opened, so it is not read"


_MAX_UNKNOWN_BYTES = 2 << 30
_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred"
_OGB_HOME = "Open Graph Benchmark, https://ogb.stanford.edu/docs/nodeprop/"

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="ogbn-products",
            description="Amazon products bought together; classes are product categories",
            num_nodes=2_449_029, num_edges=61_859_140, directed=False, num_features=100, num_classes=47,
            split_sizes=(196_615, 39_323, 2_213_091), split="by sales rank",
            licence="Amazon licence (see the home page)",
            homepage=_OGB_HOME,
            folder="ogbn_products", aliases=("products",),
            files=(
                "raw/edge.csv.gz", "raw/num-node-list.csv.gz", "raw/num-edge-list.csv.gz", "raw/node-feat.csv.gz",
                "raw/node-label.csv.gz", "split/sales_ranking/train.csv.gz", "split/sales_ranking/valid.csv.gz",
                "split/sales_ranking/test.csv.gz",
            ),
            url=f"{_OGB}/products.zip", archive="products.zip", download_bytes=1_480_000_000,
        ),
        Dataset(
            name="ogbn-papers100M",
            description="papers that cite papers; classes are arXiv subject areas, most papers have none",
            num_nodes=111_059_956, num_edges=1_615_685_872, directed=True, num_features=128, num_classes=172,
            split_sizes=(1_207_179, 125_265, 214_338), split="by year",
            licence="ODC-BY 1.0",
            homepage=_OGB_HOME,
            folder="ogbn_papers100M", aliases=("papers100M-bin",),
            files=(
                "raw/data.npz", "raw/node-label.npz", "split/time/train.csv.gz", "split/time/valid.csv.gz",
                "split/time/test.csv.gz",
            ),
            url=f"{_OGB}/papers100M-bin.zip", archive="papers100M-bin.zip", download_bytes=60_300_000_000,
        ),
        Dataset(
            name="snap-patents",
            description="US patents that cite patents; classes are five spans of the grant year",
            num_nodes=2_923_922, num_edges=13_975_788, directed=True, num_features=269, num_classes=5,
            split_sizes=(1_461_961, 730_981, 730_980), split="random",
            licence="none stated",
            homepage="LINKX, https://github.com/CUAI/Non-Homophily-Large-Scale",
            folder="snap_patents", aliases=("snap-patents",),
            files=("snap_patents.mat",),
            url="https://drive.usercontent.google.com/download?id=1ldh23TSY1PwXia6dU0MYcpyEgX-w3Hia"
            "&export=download&confirm=t",
            archive="snap_patents.mat", begins_with=b"MATLAB",
        ),
    )
}  # fmt: skip


def dataset(name: str) -> Dataset:
    """The dataset of this name, or an error that names the nearest."""
    found = {known.lower(): known for known in DATASETS}.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise ConfigError(f"no dataset {name!r}{nearest(name, DATASETS)}; there are {', '.join(DATASETS)}")
    return DATASETS[found]


def listing(root: PathLike | None = None) -> list[dict[str, Any]]:
    """What `largegt datasets` shows, a row per dataset; with `root`, whether it is there, and where."""
    rows = []
    for one in DATASETS.values():
        row: dict[str, Any] = {
            "name": one.name, "description": one.description, "nodes": one.num_nodes, "edges": one.num_edges,
            "directed": one.directed, "features": one.num_features, "classes": one.num_classes,
            "split": f"{one.split}: {' / '.join(f'{size:,}' for size in one.split_sizes)}", "licence": one.licence,
            "homepage": one.homepage, "url": one.url,
            "download": format_bytes(one.download_bytes) if one.download_bytes else "unknown",
            "files": [f"{one.folder}/{file}" for file in one.files],
        }  # fmt: skip
        if root is not None:
            row |= {"complete": not one.missing(root), "folder": str(one.find(root))}
        rows.append(row)
    return rows


def source(name: str, root: PathLike) -> Source:
    """The dataset's files as a `Source`, ready to ingest with `ingest_config(name)`."""
    from . import ogb, snap_patents

    loaders = {
        "ogbn-products": ogb.ogbn_products,
        "ogbn-papers100M": ogb.ogbn_papers100m,
        "snap-patents": snap_patents.snap_patents,
    }
    return loaders[dataset(name).name](root)


def ingest_config(name: str, /, **overrides: Any) -> IngestConfig:
    """How `ingest` is to take a dataset: its name, whether edges have a direction, the shares of a split we make."""
    from largegt.config.overrides import build
    from largegt.config.schema import IngestConfig

    one = dataset(name)
    settings = {
        "name": one.name,
        "undirected": not one.directed,
        "task": "multiclass",
        "split_fractions": (0.5, 0.25, 0.25),
    }
    return build(IngestConfig, settings | overrides)


def ingest_dataset(
    name: str, root: PathLike, out: PathLike, config: IngestConfig | None = None, **how: Any
) -> GraphStore:
    """The store of a dataset. `config` is `ingest_config(name)` when not given; `how` is for `ingest`."""
    from largegt.data.ingest import ingest

    return ingest(source(name, root), out, config or ingest_config(name), **how)
