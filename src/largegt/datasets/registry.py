"""Registry of the paper's three datasets: descriptions, sources and file locations.

Enters: a name, the root folder of datasets. Leaves: a `Dataset`, its `Source`, its store. Cost: a listing only checks
whether files exist; loaders are imported on demand.

The files of a dataset are in `ROOT/FOLDER` as published, for example `ROOT/ogbn_products/raw/edge.csv.gz`. `ROOT` may
also be that folder itself, or contain it under its name in the authors' archive.
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
    """One dataset. Counts are those of its files, as in the paper."""

    name: str
    description: str
    num_nodes: int
    num_edges: int
    directed: bool
    """Undirected datasets list each edge once; ingest adds the inverse edges."""
    num_features: int
    num_classes: int
    split_sizes: tuple[int, int, int]
    """Train, valid and test; all other nodes are unlabelled."""
    split: str
    licence: str
    homepage: str
    folder: str
    """Folder of the files below the root."""
    files: tuple[str, ...]
    """The files that the loader reads, relative to the folder."""
    url: str
    archive: str
    """Name of the download: a zip with the files, or the single file."""
    aliases: tuple[str, ...] = ()
    """Other names of the folder."""
    begins_with: bytes = b"PK"
    """First bytes of the download, to detect an error page."""
    download_bytes: int | None = None
    """Approximate size of the download, if known."""
    checksum: str | None = None
    """`sha256:…` or `md5:…` of the download, if published. None of the three is published, so the digest of the first
    download is saved, and later downloads must match it."""

    @property
    def is_zip(self) -> bool:
        return self.archive.endswith(".zip")

    @property
    def max_bytes(self) -> int:
        """Maximum download size: twice the known size, or a generous limit."""
        return 2 * (self.download_bytes or _MAX_UNKNOWN_BYTES)

    def target(self, root: PathLike) -> Path:
        """Path of the download."""
        return (Path(root) if self.is_zip else self.find(root)) / self.archive

    def find(self, root: PathLike) -> Path:
        """The folder with the files, below `root` or `root` itself; the default folder if there are no files."""
        root, names = Path(root), (self.folder, *self.aliases)
        folders = (*(root / name for name in names), root)
        default = root if root.name in names else folders[0]
        return next((folder for folder in folders if any((folder / file).is_file() for file in self.files)), default)

    def missing(self, root: PathLike) -> list[str]:
        """The missing files, relative to the folder."""
        folder = self.find(root)
        return [file for file in self.files if not (folder / file).is_file()]

    def require(self, root: PathLike) -> Path:
        """The folder, if it has all files; otherwise an error with the missing files and how to get them."""
        folder, missing = self.find(root), self.missing(root)
        if not missing:
            return folder
        raise InputError(f"{self.name} is not complete: {self.how_to_get(folder, missing)}{_pickles(folder)}")

    def how_to_get(self, folder: Path, missing: list[str]) -> str:
        """How to get the `missing` files, by hand or by command."""
        paths = ", ".join(str(folder / file) for file in missing)
        inside = f"; they are in {self.archive}" if self.is_zip else ""
        root = folder.parent if folder.name in (self.folder, *self.aliases) else folder
        return (
            f"missing {paths}{inside} from {self.url} (home page: {self.homepage}); "
            f"or run: largegt datasets download {self.name} --root {quoted(root)}"
        )


def _pickles(folder: Path) -> str:
    """A note about pickles, if the folder has caches of other tools."""
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
    """The dataset with this name; otherwise an error that suggests the nearest name."""
    found = {known.lower(): known for known in DATASETS}.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise ConfigError(f"no dataset {name!r}{nearest(name, DATASETS)}; there are {', '.join(DATASETS)}")
    return DATASETS[found]


def listing(root: PathLike | None = None) -> list[dict[str, Any]]:
    """Rows of `largegt datasets`, one per dataset; with `root`, also whether it is complete, and its folder."""
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
    """The ingest configuration of a dataset: its name, whether edges are directed, and the split fractions."""
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
    """Ingest a dataset. `config` defaults to `ingest_config(name)`; `how` are keyword arguments of `ingest`."""
    from largegt.data.ingest import ingest

    return ingest(source(name, root), out, config or ingest_config(name), **how)
