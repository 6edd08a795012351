"""Settings: one frozen pydantic model per stage, and `Config` for a whole run. A field's docstring is its help text.

Enters: a recipe's name or file (recipes.py), and `--set a.b=c` overrides. Leaves: a `Config` with all fields set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from largegt.errors import ConfigError
from largegt.types import MISSING_MARKERS, Direction, Normalization, PathLike, TablePlace, Task

from .models import (
    LargeGTConfig,
    LocalInputsConfig,
    ModelConfig,
    ModelSpec,
    NodeLabelsConfig,
    model_spec,
    model_specs,
    read_model,
)
from .overrides import (
    LARGEST_COUNT,
    LARGEST_WIDTH,
    Setting,
    Settings,
    apply_override,
    build,
    describe_settings,
    seconds,
    several,
    to_toml,
)
from .recipes import on_top, read_recipe

Seed = Field(default=0, ge=0, lt=2**63)


class IngestConfig(Settings):
    """Settings of ingest, which turns files into a store."""

    name: str = ""
    """Name of the graph in tables; the folder's name when empty."""
    undirected: bool = False
    """Add the reverse of every edge. Otherwise edges keep the direction they have in the file."""
    feature_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Precision of the stored features."""
    task: Literal["auto"] | Task = "auto"
    """The kind of labels. auto: several label columns are multilabel, fractions regression, two values binary."""
    split_fractions: tuple[float, float, float] = (0.5, 0.25, 0.25)
    """Fractions of train, validation and test nodes when no split is given."""
    split_seed: int = Seed
    """Seed of a random split."""
    stratify: bool = False
    """Random splits keep the class proportions in every part."""
    unknown_ids: Literal["error", "drop"] = "error"
    """What to do with edges that have an endpoint outside the node table."""
    missing_values: Literal["auto", "mean", "refuse"] = "auto"
    """Missing features: the mean of the training nodes, or an error. auto: the mean in tables, an error in arrays."""
    missing_markers: tuple[str, ...] = MISSING_MARKERS
    """Cell contents that mean a missing feature or label; empty cells always do."""
    column_kinds: tuple[str, ...] = ()
    """Column kinds that override the inferred ones: city=category, zip=ignore, separated by commas."""
    text_model: str = ""
    """Folder of a local sentence-transformers model that embeds text columns. Empty: words are hashed."""
    parallel_edges: Literal["sum", "count", "last"] = "sum"
    """Edges between the same two nodes: sum their weights, use their count as the weight, or keep the last edge."""

    @field_validator("split_fractions", "missing_markers", "column_kinds", mode="before")
    @classmethod
    def _read_several(cls, value: Any) -> Any:
        return several(value)


class LocalNodesConfig(Settings):
    """The paper's LocalNodes (Algorithm 1)."""

    k: int = Field(default=50, ge=1, le=LARGEST_COUNT)
    """Local nodes per node, including the node itself (the paper's K). 1: only the node itself, no sampling."""
    direction: Direction = "both"
    """Which edges lead to neighbours: out, in, or both (the undirected view)."""
    hop1_fraction: float | None = Field(default=None, ge=0, le=1)
    """Fraction of the K - 1 slots for one-hop neighbours, the rest for two-hop ones. none: uniform over both."""
    target_nodes: Literal["labelled", "all"] = "labelled"
    """Which nodes to prepare now; predictions prepare other nodes when they need them."""
    seed: int = Seed
    """Seed of the samples."""
    use_edge_weights: bool | Literal["auto"] = "auto"
    """Sample neighbours in proportion to edge weights. auto: where the store has weights."""

    def relevant(self) -> dict[str, Any]:
        """The settings that affect the result: with k = 1 nothing is sampled, so sampling settings do not count."""
        unused = {"hop1_fraction", "seed", "use_edge_weights"} if self.k == 1 else None
        return self.model_dump(mode="json", exclude=unused)


class TokensConfig(Settings):
    """The token table, from which tokens are gathered."""

    num_hops: int = Field(default=2, ge=0, le=100)
    """A token row holds the node's features H and the contexts ÃH, Ã²H, … up to this power; 2 in the paper."""

    normalize: Normalization = "per_feature"
    """per_feature: mean 0, variance 1. global: divide all by one number (bags of words). auto: chosen from the data."""
    dtype: Literal["float32", "float16"] = "float32"
    """Precision of the stored token rows; sums are always float32."""
    precompute_for: Literal["sampled", "reachable", "all"] = "sampled"
    """Nodes with a stored token row: the sampled ones, all within two hops (for later samples), or all."""
    separate_directions: bool = False
    """Directed graphs: separate context tokens along out- and in-edges, 1 + 2·num_hops tokens per local node."""
    add_degrees: bool = False
    """Add log(1 + degree) to the features: one column for an undirected graph, out and in for a directed one."""
    use_edge_weights: bool | Literal["auto"] = "auto"
    """Contexts are means weighted by edge weights. auto: where the store has weights."""
    use_edge_features: bool | Literal["auto"] = "auto"
    """Append the mean edge features to the contexts. auto: where the store has edge features."""


class PositionalEncodingConfig(Settings):
    """Positional encodings for the GlobalModule."""

    method: Literal["random_projection", "node2vec", "laplacian", "none"] = "random_projection"
    """random_projection: of adjacency powers, fast. node2vec: as in the paper, slow. laplacian: eigenvectors."""
    dim: int = Field(default=64, ge=1, le=LARGEST_WIDTH)
    """Width of the encoding."""
    seed: int = Seed
    """Seed of the projection, or of the walks and the skip-gram model."""
    projection_weights: tuple[float, ...] = (0.0, 1.0, 1.0, 1.0)
    """random_projection: weight of each power of the adjacency, starting with the first."""
    walk_length: int = Field(default=40, ge=2, le=LARGEST_COUNT)
    """node2vec: nodes per walk."""
    context_size: int = Field(default=20, ge=2, le=LARGEST_COUNT)
    """node2vec: nodes per window of a walk."""
    walks_per_node: int = Field(default=10, ge=1, le=LARGEST_COUNT)
    """node2vec: walks that start at each node."""
    p: float = Field(default=1.0, gt=0)
    """node2vec: return parameter; with small values walks often step back."""
    q: float = Field(default=1.0, gt=0)
    """node2vec: in-out parameter; with small values walks move outwards."""
    num_negative_samples: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """node2vec: random (negative) walks per real walk."""
    epochs: int = Field(default=1, ge=1)
    """node2vec: passes over all walks."""
    batch_size: int = Field(default=256, ge=1, lt=2**31)
    """node2vec: start nodes per step."""
    learning_rate: float = Field(default=0.01, gt=0)
    """node2vec: learning rate of SparseAdam."""

    def relevant(self) -> dict[str, Any]:
        """The settings that the chosen method reads; others have no effect."""
        every = self.model_dump(mode="json")
        read_by = {
            "none": {"method"},
            "random_projection": {"method", "dim", "seed", "projection_weights"},
            "laplacian": {"method", "dim"},
            "node2vec": set(every) - {"projection_weights"},
        }
        return {name: value for name, value in every.items() if name in read_by[self.method]}


class PrepareConfig(Settings):
    """The preparation, which is computed once before training."""

    local_nodes: LocalNodesConfig = LocalNodesConfig()
    tokens: TokensConfig = TokensConfig()
    positional_encoding: PositionalEncodingConfig = PositionalEncodingConfig()

    @property
    def can_resample(self) -> bool:
        """Whether token rows exist for any new sample."""
        return self.tokens.precompute_for != "sampled" or self.local_nodes.k == 1

    def reachable(self) -> PrepareConfig:
        """The settings with token rows of all reachable nodes, so that new samples are possible."""
        return self if self.can_resample else self._with(tokens={"precompute_for": "reachable"})

    def for_all_nodes(self) -> PrepareConfig:
        """The settings with a row for every node."""
        return self._with(local_nodes={"target_nodes": "all"})

    def for_model(self, spec: ModelSpec) -> PrepareConfig:
        """The settings with those that the model requires."""
        return self._with(**spec.needs)

    def serves(self, spec: ModelSpec) -> bool:
        """Whether the model can train on a preparation with these settings. It may have more local nodes or hops than
        the model reads, but no missing rows."""
        needed = spec.needs.get("tokens", {}).get("precompute_for", self.tokens.precompute_for)
        return bool(self.tokens.precompute_for == needed)

    def _with(self, **tables: dict[str, Any]) -> PrepareConfig:
        changed = {table: getattr(self, table).model_copy(update=update) for table, update in tables.items()}
        return self.model_copy(update=changed)


class ResolvedPrepareConfig(PrepareConfig):
    """The settings of a preparation, and the label inputs that its model reads."""

    neighbor_label_hops: int = Field(default=0, ge=0, le=2)
    """Count the training labels within this many hops of each prepared node, without its own."""
    local_label_histograms: bool = False
    """Count the training labels around every node that has a token row."""

    @property
    def settings(self) -> PrepareConfig:
        """The settings without the label inputs."""
        return PrepareConfig(
            local_nodes=self.local_nodes, tokens=self.tokens, positional_encoding=self.positional_encoding
        )


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
    """epoch: sample new local nodes every epoch, in the background. Needs the store while training."""
    num_eval_samples: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """Average test scores and predictions over this many samples of local nodes; validation uses one."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Validate, save and predict with a moving average of the weights, with this decay per step; 0: off."""
    consistency_weight: float = Field(default=0.0, ge=0)
    """Weight of the consistency loss: two samples of an unlabelled node should get the same prediction. 0: off."""
    consistency_batch_size: int = Field(default=256, ge=1, lt=2**31)
    """Unlabelled nodes per step for the consistency loss."""
    consistency_threshold: float = Field(default=0.7, ge=0, lt=1)
    """The consistency loss uses nodes whose average prediction has at least this probability. 0: all nodes."""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """Adam, or AdamW with decoupled weight decay."""
    learning_rate: float = Field(default=1e-3, gt=0, le=100)
    """Learning rate; with the cosine and linear schedulers, its maximum."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Weight decay (decoupled with adamw)."""
    lr_scheduler: Literal["constant", "cosine", "linear"] = "cosine"
    """cosine: linear warm-up, then cosine decay to zero. linear: warm-up, then linear decay to min_learning_rate."""
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1)
    """cosine, linear: fraction of all steps spent warming up."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """cosine, linear: steps spent warming up; replaces warmup_ratio when given."""
    min_learning_rate: float = Field(default=0.0, ge=0)
    """linear: learning rate at the last step."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Maximum norm of the gradient, which is clipped to it; none: no clipping."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: weight each class by nodes / (classes · nodes of the class), counted in the training split."""
    monitor: str = "auto"
    """Validation metric that picks the best epoch, e.g. f1. auto: accuracy, roc_auc for binary and multilabel, rmse."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after this many epochs without a better validation score; none: train all epochs."""
    max_time: str | None = None
    """Wall-clock limit such as 90s, 30m or 4h: training ends cleanly there with the best result kept."""
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"
    """auto: bf16-mixed on a GPU that supports it, 32-true otherwise and on every CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model with torch.compile: takes a minute, then steps are faster. auto: on a GPU, for many steps."""
    deduplicate_tokens: bool | Literal["auto"] = "auto"
    """Compute repeated tokens once, with log(multiplicity) added to the score; copies share dropout. auto: on a CPU."""
    layerwise_inference: bool = True
    """Evaluate message-passing models layer by layer over all neighbours; false: over sampled ones, as in training."""
    checkpoint_every_n_epochs: int = Field(default=1, ge=1)
    """Epochs between checkpoints to resume from."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project; needs the wandb extra."""
    token_table: TablePlace = "auto"
    """Keep token rows in GPU memory, pinned host memory, or files. auto: the first with room. Same results."""

    @model_validator(mode="after")
    def _check_end(self) -> TrainConfig:
        if self.lr_scheduler == "linear" and self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate ({self.min_learning_rate:g}) is above learning_rate ({self.learning_rate:g})"
            )
        return self

    @field_validator("max_time", mode="before")
    @classmethod
    def _check_max_time(cls, max_time: Any) -> Any:
        """Refuse an invalid duration now, not after the preparation. A number means seconds."""
        if max_time is None:
            return None
        try:
            seconds(str(max_time))
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return str(max_time)


class Config(Settings):
    """The configuration of a run: preparation, model and training."""

    prepare: PrepareConfig = PrepareConfig()
    model: SerializeAsAny[ModelConfig] = LargeGTConfig()
    train: TrainConfig = TrainConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _read_model(cls, model: Any) -> Any:
        return read_model(model) if isinstance(model, Mapping) else model

    @classmethod
    def from_recipe(cls, recipe: PathLike | Config = "default", overrides: Iterable[str] = ()) -> Config:
        """The recipe of this name (`recipe_names()` lists them), TOML file or a whole configuration, with `a.b=c`
        overrides on top."""
        tree = recipe.model_dump(mode="json") if isinstance(recipe, Config) else read_recipe(recipe)
        changes: dict[str, Any] = {}
        for override in overrides:
            apply_override(changes, override)
        return build(cls, on_top(tree, changes))

    @property
    def preparation(self) -> ResolvedPrepareConfig:
        """The resolved preparation: `prepare` with the settings that the model requires, and with all reachable nodes
        if training or evaluation needs new samples."""
        model, needed = self.model, self.prepare.for_model(self.model.spec)
        if self.train.resample == "epoch" or self.train.num_eval_samples > 1:
            needed = needed.reachable()
        return ResolvedPrepareConfig(
            local_nodes=needed.local_nodes,
            tokens=needed.tokens,
            positional_encoding=needed.positional_encoding,
            neighbor_label_hops=model.neighbor_label_hops if isinstance(model, NodeLabelsConfig) else 0,
            local_label_histograms=isinstance(model, LocalInputsConfig) and model.local_label_histograms,
        )

    def to_toml(self) -> str:
        """The whole configuration as TOML: enough to repeat the run."""
        return to_toml(self.model_dump(mode="json"))


def describe_config(model: str | None = None) -> list[Setting]:
    """All settings of a run, with those of one model or of all models."""
    specs = model_specs() if model is None else [model_spec(model)]
    of_models: dict[str, Setting] = {}
    for spec in specs:
        for item in describe_settings(spec.settings, "model."):
            of_models.setdefault(item.name, item)
    every = describe_settings(Config)
    at = next(place for place, item in enumerate(every) if item.name.startswith("model."))
    others = [item for item in every if not item.name.startswith("model.")]
    return [*others[:at], *of_models.values(), *others[at:]]
