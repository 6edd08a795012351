"""The settings: one frozen model per stage, and `Config` for a whole run. The line under a field is its help text.

Enters: a recipe's name or file (recipe.py), and `--set a.b=c` overrides. Leaves: a `Config` with every field filled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from largegt.errors import ConfigError
from largegt.types import MISSING_MARKERS, Direction, ModelName, PathLike, Task

from .describe import Settings, apply_override, build, seconds, several, to_toml
from .recipes import read_recipe

Seed = Field(default=0, ge=0, lt=2**63)

_WIDE, _MANY = 1 << 16, 1 << 20
"""The most that a width and a count may be: beyond it is a slip of the finger, and would end for lack of memory."""


class IngestConfig(Settings):
    """How files become a store."""

    name: str = ""
    """What the graph is called in tables; the folder's name when empty."""
    undirected: bool = False
    """Add the inverse of every edge. Without it edges keep the direction they have in the file."""
    feature_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Precision of the stored features."""
    task: Literal["auto"] | Task = "auto"
    """What the labels are. auto: several label columns are multilabel, fractions regression, two values binary."""
    split: tuple[float, float, float] = (0.5, 0.25, 0.25)
    """Shares of train, valid and test when no split is given."""
    split_seed: int = Seed
    """Seed of a split we make."""
    stratify: bool = False
    """Keep each class's share in every part of a split we make."""
    unknown_ids: Literal["error", "drop"] = "error"
    """What to do with an edge whose end is not in the node table."""
    missing_values: Literal["auto", "mean", "refuse"] = "auto"
    """Missing features: the mean of the training nodes, or an error. auto: the mean in tables, an error in arrays."""
    missing_markers: tuple[str, ...] = MISSING_MARKERS
    """Cells that stand for a missing feature or label; empty cells always do."""
    kinds: tuple[str, ...] = ()
    """Kinds of columns that are not to be inferred: city=category, zip=ignore, separated by commas."""
    text_model: str = ""
    """Folder of a local sentence-transformers model that embeds columns of text. Empty: their words are hashed."""
    parallel_edges: Literal["sum", "count", "last"] = "sum"
    """Edges between the same nodes: weights are added, edges are counted as the weight, or the last one counts."""

    @field_validator("split", "missing_markers", "kinds", mode="before")
    @classmethod
    def _read_several(cls, value: Any) -> Any:
        return several(value)


class LocalNodesConfig(Settings):
    """The paper's LocalNodes (Algorithm 1)."""

    k: int = Field(default=50, ge=1, le=_MANY)
    """Local nodes per node, itself included (the paper's K). 1: the node alone, nothing is sampled."""
    direction: Direction = "both"
    """Which edges lead to neighbours: out, in, or both (the undirected view). Contexts too, unless apart."""
    hop1_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the K - 1 slots for one-hop neighbours, the rest for nodes at distance two. none: uniform over both."""
    nodes: Literal["labelled", "all"] = "labelled"
    """Which nodes get a row now. Others are sampled when a prediction asks for them."""
    seed: int = Seed
    """Seed of the sample."""
    weighted: bool | Literal["auto"] = "auto"
    """Draw neighbours in proportion to edge weights. auto: where the store has weights."""
    near: bool = False
    """Read which local nodes an edge joins to the node; set by model.distances and model.label_surroundings."""

    def relevant(self) -> dict[str, Any]:
        """The settings that a sample depends on: where nothing is sampled, not those of the sample."""
        sampling = {"hop1_share", "seed", "weighted"} if self.k == 1 else set()
        return self.model_dump(mode="json", exclude={*sampling, "near"})


class TokensConfig(Settings):
    """The rows that tokens are gathered from."""

    hops: int = Field(default=2, ge=0, le=100)
    """A token row holds the node's features H and their contexts ÃH, Ã²H, … up to this power; the paper has 2."""

    standardize: bool | Literal["whole", "auto"] = True
    """Every feature to mean 0 and variance 1; whole: all divided by one number, for words. auto: looks. Paper: no."""
    dtype: Literal["float32", "float16"] = "float32"
    """Precision of the stored token rows; sums are always float32."""
    nodes: Literal["sampled", "reachable", "all"] = "sampled"
    """Which nodes get a token row: sampled ones, reachable (all within two hops, for fresh samples), or all."""
    contexts: Literal["together", "apart"] = "together"
    """apart: contexts along and against the edges of a directed graph are tokens of their own, 1 + 2·hops a node."""
    degrees: bool = False
    """Add log(1 + degree) to the features: one column for an undirected graph, out and in for a directed one."""
    weighted: bool | Literal["auto"] = "auto"
    """Contexts are means weighted by edge weights. auto: where the store has weights."""
    edge_features: bool | Literal["auto"] = "auto"
    """Contexts have the means of edge features behind those of node features. auto: where the store has some."""


class PositionsConfig(Settings):
    """Positional encodings for the GlobalModule."""

    method: Literal["projection", "node2vec", "laplacian", "none"] = "projection"
    """projection: powers of the adjacency, seconds. node2vec: the paper's, slow. laplacian: eigenvectors. none."""
    dim: int = Field(default=64, ge=1, le=_WIDE)
    """Width of the encoding."""
    seed: int = Seed
    """Seed of the projection or of the walks and the skip-gram."""
    projection_weights: tuple[float, ...] = (0.0, 1.0, 1.0, 1.0)
    """projection: weight of each power of the adjacency, from the first on."""
    walk_length: int = Field(default=40, ge=2, le=_MANY)
    """node2vec: nodes in a walk."""
    context: int = Field(default=20, ge=2, le=_MANY)
    """node2vec: nodes in a window of the walk."""
    walks_per_node: int = Field(default=10, ge=1, le=_MANY)
    """node2vec: walks that start at each node."""
    p: float = Field(default=1.0, gt=0)
    """node2vec: return parameter; small values go back often."""
    q: float = Field(default=1.0, gt=0)
    """node2vec: in-out parameter; small values go outwards."""
    negatives: int = Field(default=1, ge=1, le=_MANY)
    """node2vec: random walks contrasted with each real one."""
    epochs: int = Field(default=1, ge=1)
    """node2vec: passes over all walks."""
    batch_size: int = Field(default=256, ge=1, lt=2**31)
    """node2vec: start nodes per step."""
    learning_rate: float = Field(default=0.01, gt=0)
    """node2vec: SparseAdam's step size."""

    def relevant(self) -> dict[str, Any]:
        """The settings that the chosen method reads: changing others changes nothing."""
        every = self.model_dump(mode="json")
        read_by = {
            "none": {"method"},
            "projection": {"method", "dim", "seed", "projection_weights"},
            "laplacian": {"method", "dim"},
            "node2vec": set(every) - {"projection_weights"},
        }
        return {name: value for name, value in every.items() if name in read_by[self.method]}


class LabelContextsConfig(Settings):
    """Training labels around a node, for models that read them."""

    hops: int = Field(default=0, ge=0, le=2)
    """Count training labels so many hops around each node, its own left out; set by model.label_contexts."""
    local: bool = False
    """Count training labels around every node that has token rows as well; set by model.label_surroundings."""


class PrepareConfig(Settings):
    """Everything that is computed once, offline."""

    local_nodes: LocalNodesConfig = LocalNodesConfig()
    tokens: TokensConfig = TokensConfig()
    positions: PositionsConfig = PositionsConfig()
    labels: LabelContextsConfig = LabelContextsConfig()

    @property
    def can_resample(self) -> bool:
        """Whether every other sample finds its token rows."""
        return self.tokens.nodes != "sampled" or self.local_nodes.k == 1

    def reachable(self) -> PrepareConfig:
        """The same with token rows of every node in reach, so that other samples can be drawn."""
        return self if self.can_resample else self._with(tokens={"nodes": "reachable"})

    def for_all_nodes(self) -> PrepareConfig:
        """The same with a row for every node."""
        return self._with(local_nodes={"nodes": "all"})

    def for_model(self, name: ModelName) -> PrepareConfig:
        """What a model of this name needs, and as set here where it can do with anything."""
        return self._with(**_NEEDS.get(name, {}))

    def serves(self, name: ModelName) -> bool:
        """Whether a model of this name can be trained on what is prepared so. More local nodes or hops than it reads
        do no harm; rows that are not there do."""
        needed = _NEEDS.get(name, {}).get("tokens", {}).get("nodes", self.tokens.nodes)
        return bool(self.tokens.nodes == needed)

    def _with(self, **tables: dict[str, Any]) -> PrepareConfig:
        changed = {table: getattr(self, table).model_copy(update=update) for table, update in tables.items()}
        return self.model_copy(update=changed)


class CodebookConfig(Settings):
    """The GlobalModule's codebook and its attention (Algorithm 3)."""

    centroids: int = Field(default=1024, ge=1, le=2**24)
    """Size of the codebook (the paper's B, 4096 there)."""
    width: int = Field(default=64, ge=1, le=_WIDE)
    """Width of MLP_a's output, the feature half of a centroid."""
    heads: int = Field(default=2, ge=1, le=_WIDE)
    """Attention heads over the codebook."""
    head_width: int | None = Field(default=None, ge=1, le=_WIDE)
    """Width of a head; hidden / heads when not given."""
    decay: float = Field(default=0.99, gt=0, lt=1)
    """Decay of the EMA k-means."""
    epsilon: float = Field(default=1e-5, gt=0)
    """Laplace smoothing of the cluster sizes."""
    revive_below: float = Field(default=0.05, ge=0)
    """A centroid whose EMA size falls below this moves to a random node of the batch. 0, as published: never."""
    variant: Literal["largegt", "goat"] = "largegt"
    """goat: GOAT's own attention and start of the codebook, for goat-global and goat-full; never revives centroids."""


_OWN_ROW: dict[str, dict[str, Any]] = {"local_nodes": {"k": 1}}
_OWN_FEATURES = _OWN_ROW | {"tokens": {"hops": 0}}
_ALL_FEATURES = _OWN_ROW | {"tokens": {"hops": 0, "nodes": "all"}}

_NEEDS: dict[ModelName, dict[str, dict[str, Any]]] = {
    "largegt-local": {"positions": {"method": "none"}},
    "largegt-global": _OWN_ROW,
    "mlp": _OWN_ROW,
    "sgc": _OWN_ROW | {"tokens": {"contexts": "together"}},
    "sign": _OWN_ROW,
    "nagphormer": _OWN_ROW,
    "goat-global": _OWN_ROW,
    "linkx": _OWN_FEATURES,
    "graphsage": _ALL_FEATURES,
    "gat": _ALL_FEATURES,
    "gt-sparse": _ALL_FEATURES,
    "goat-local": _ALL_FEATURES,
    "goat-full": _ALL_FEATURES,
}
"""What a model needs of a preparation, where it cannot do with any: models that read a node's own row alone need no
sample, and those that draw neighbours themselves need the features of every node. The local half reads no positions."""


class ModelConfig(Settings):
    """The network."""

    name: ModelName = "largegt-full"
    """largegt-full, largegt-local (no GlobalModule), largegt-global (no LocalModule), or one of the baselines."""
    hidden: int = Field(default=128, ge=1, le=_WIDE)
    """Hidden width."""
    heads: int = Field(default=2, ge=1, le=_WIDE)
    """Attention heads of the LocalModule, and of the baselines that attend."""
    head_width: int | None = Field(default=None, ge=1, le=_WIDE)
    """Width of each head; hidden / heads when not given. The published configuration has hidden."""
    num_layers: int = Field(default=1, ge=1, le=1000)
    """Encoder layers of the LocalModule and of nagphormer; hidden layers of sign's head, one fewer than mlp's."""
    fanouts: tuple[int, ...] = (20, 10)
    """Neighbours drawn per hop, from the node outwards; its length is the number of layers; -1 takes all."""
    encoder_ffn: float = Field(default=2.0, ge=0, le=1000)
    """Width of the encoder's feed-forward part as a multiple of hidden; 0 leaves it out, as published."""
    hop_embeddings: bool = True
    """Add a learned vector to each token that says its hop and whether it is the node's own. Off as published."""
    encoder_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on what the encoder's layers add."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights; leaves the fast attention kernels on a CPU."""
    input_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the features that enter LargeGT's local half, graphsage, gat, gt-sparse and sgc."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Dropout in the FFN that joins local and global, and between the layers of baselines."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """Norm of the FFN block, of Eqn 6 and between the layers of baselines. none: no norm."""
    residual: bool = True
    """Add the node's own projected features (Eqn 6). gat: a linear skip; without it, the form of its first paper."""
    init: Literal["default", "normal"] = "default"
    """normal: N(0, 0.02) weights and zero biases in the LocalModule and in nagphormer, as published."""
    label_contexts: int = Field(default=0, ge=0, le=2)
    """LargeGT: hops around a node whose training labels it is told, as shares, without its own. 0 as published."""
    label_tokens: bool = False
    """LargeGT: labels of training nodes among a node's local nodes are inputs, its own is not. Off as published."""
    label_surroundings: bool = False
    """LargeGT: each local node tells the shares of training labels around it, the node's own left out. Off: paper."""
    distances: bool = False
    """LargeGT: tokens say whether an edge joins their local node to the node, or it is farther. Off as published."""
    node_dropout: float = Field(default=0.0, ge=0, lt=1)
    """LargeGT: share of the local nodes, the node itself apart, that a training step leaves out."""
    codebook: CodebookConfig = CodebookConfig()

    @property
    def reads_surroundings(self) -> bool:
        """Whether a model of this name can be told of its local nodes."""
        return self.name in ("largegt-full", "largegt-local")

    @field_validator("fanouts", mode="before")
    @classmethod
    def _read_fanouts(cls, fanouts: Any) -> Any:
        return several(fanouts)

    @field_validator("fanouts")
    @classmethod
    def _check_fanouts(cls, fanouts: tuple[int, ...]) -> tuple[int, ...]:
        if not 1 <= len(fanouts) <= 100 or any((fanout < 1 and fanout != -1) or fanout > _MANY for fanout in fanouts):
            raise ValueError(
                f"{','.join(map(str, fanouts)) or 'nothing'}: give a number per hop, -1 for all neighbours"
            )
        return fanouts

    @model_validator(mode="after")
    def _check_heads(self) -> ModelConfig:
        if self.head_width is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}), or give head_width")
        if self.codebook.head_width is None and self.hidden % self.codebook.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of codebook.heads ({self.codebook.heads})")
        return self

    @model_validator(mode="after")
    def _check_variant(self) -> ModelConfig:
        if self.codebook.variant == "goat" and self.name in ("largegt-full", "largegt-global"):
            raise ValueError(f"codebook.variant=goat is for goat-global and goat-full, not for {self.name}")
        return self


class TrainConfig(Settings):
    """The training loop."""

    seed: int = Seed
    """Seed of initialisation, shuffling and dropout."""
    epochs: int = Field(default=30, ge=1)
    """Passes over the training nodes, at most."""
    batch_size: int = Field(default=512, ge=1, lt=2**31)
    """Nodes per training step."""
    eval_batch_size: int = Field(default=2048, ge=1, lt=2**31)
    """Nodes per step of evaluation and prediction."""
    resample: Literal["never", "epoch"] = "never"
    """epoch: train on fresh local nodes every epoch, drawn in the background. Needs the store while training."""
    draws: int = Field(default=1, ge=1, le=_MANY)
    """Draws of local nodes that test scores and predictions are averaged over; validation has one."""
    weight_average: float = Field(default=0.0, ge=0, lt=1)
    """Score an exponential moving average of the weights, with this decay per step; 0: the weights themselves."""
    consistency: float = Field(default=0.0, ge=0)
    """Weight of a second loss, for few labels: two views of a node without one are to be predicted alike. 0: none."""
    consistency_nodes: int = Field(default=256, ge=1, lt=2**31)
    """consistency: nodes without a training label in each step."""
    consistency_confidence: float = Field(default=0.7, ge=0, lt=1)
    """consistency: only nodes whose views together give a class at least this probability count. 0: all of them."""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """Which optimizer."""
    learning_rate: float = Field(default=1e-3, gt=0, le=100)
    """Step size; the peak of it under one-cycle and polynomial."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Weight decay (decoupled with adamw)."""
    schedule: Literal["constant", "one-cycle", "polynomial"] = "one-cycle"
    """one-cycle: linear warm-up, then cosine to zero. polynomial: then linearly to end_learning_rate. constant."""
    warmup: float = Field(default=0.1, ge=0, lt=1)
    """one-cycle, polynomial: share of all steps spent warming up."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """one-cycle, polynomial: steps spent warming up; replaces the share when given."""
    end_learning_rate: float = Field(default=0.0, ge=0)
    """polynomial: step size at the last step."""
    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest norm of a gradient; none switches clipping off."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rare classes weigh more, by nodes / (classes · nodes of the class) in the training split."""
    monitor: str = "auto"
    """Validation metric that picks the best epoch, say f1. auto: accuracy, roc_auc for binary and multilabel, rmse."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many epochs without a better validation score; none trains to the end."""
    budget: str | None = None
    """Wall-clock limit such as 90s, 30m or 4h: training ends cleanly there with the best result kept."""
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"
    """auto: bf16-mixed on a GPU that supports it, 32-true otherwise and on every CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Fuse the model with torch.compile: a minute once, then faster steps. auto: on a GPU, for many steps."""
    distinct: Literal["auto", "yes", "no"] = "auto"
    """Compute a repeated token once, with log(multiplicity) in its score; its copies share dropout. auto: on a CPU."""
    inference: Literal["full", "sampled"] = "full"
    """Message-passing baselines are scored over all neighbours, layer by layer, or over sampled ones as in training."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Epochs between checkpoints to resume from."""
    wandb: str | None = None
    """Weights & Biases project to log to as well; needs the wandb extra."""

    @model_validator(mode="after")
    def _check_end(self) -> TrainConfig:
        if self.schedule == "polynomial" and self.end_learning_rate > self.learning_rate:
            raise ValueError(
                f"end_learning_rate ({self.end_learning_rate:g}) is above learning_rate ({self.learning_rate:g})"
            )
        return self

    @field_validator("budget", mode="before")
    @classmethod
    def _check_budget(cls, budget: Any) -> Any:
        """A bare number is seconds; what is no duration is refused now, not after the preparation."""
        if budget is None:
            return None
        try:
            seconds(str(budget))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return str(budget)


class TableConfig(Settings):
    """The token table during training. Results do not depend on it."""

    table: Literal["auto", "gpu", "host", "disk"] = "auto"
    """Where token rows lie: in the GPU's memory, in this machine's (pinned), or on disk. auto: the first with room."""


class Config(Settings):
    """A whole run: what to prepare, which model, how to train."""

    prepare: PrepareConfig = PrepareConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    tokens: TableConfig = TableConfig()

    @classmethod
    def from_recipe(cls, recipe: PathLike | Config = "default", overrides: Iterable[str] = ()) -> Config:
        """The recipe of this name (`recipe_names()` lists them), TOML file or a whole configuration, with `a.b=c`
        overrides on top."""
        tree = recipe.model_dump(mode="json") if isinstance(recipe, Config) else read_recipe(recipe)
        for override in overrides:
            apply_override(tree, override)
        return build(cls, tree)

    @property
    def preparation(self) -> PrepareConfig:
        """What to prepare: as `prepare` says, but what the model needs, and with every node in reach where training or
        scoring draws fresh samples."""
        model, needed = self.model, self.prepare.for_model(self.model.name)
        counts_locally = model.reads_surroundings and model.label_surroundings
        is_near = model.reads_surroundings and (model.distances or model.label_surroundings)
        needed = needed._with(
            local_nodes={"near": needed.local_nodes.near or is_near},
            labels={
                "hops": max(needed.labels.hops, model.label_contexts),
                "local": needed.labels.local or counts_locally,
            },
        )
        return needed.reachable() if self.train.resample == "epoch" or self.train.draws > 1 else needed

    def to_toml(self) -> str:
        """The whole configuration as TOML: enough to run it again."""
        return to_toml(self.model_dump(mode="json"))
