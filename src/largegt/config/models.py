"""The model registry: one entry per model, with its class, its settings and its inputs from a preparation.

To add a model, write a class (models/), a settings class and an entry here, or use `@register_model` in your own
package. Entries hold the names of classes and do not import them: reading a configuration does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from largegt.errors import ConfigError, nearest

from .overrides import LARGEST_COUNT, LARGEST_WIDTH, Settings, build, leaves, setting_names, several

Input = Literal["local_nodes", "contexts", "positions", "neighbors"]
"""An input of a model beside a node's features: a sample of local nodes, context features, positional encodings, or
neighbours that the model samples from the store."""


class UnknownModelError(ConfigError):
    """No model with this name is registered."""


class ModelConfig(Settings):
    """Settings of a model. Each model has a subclass with the settings that it reads."""

    name: str
    """The model; `largegt config --models` lists them."""

    @property
    def spec(self) -> ModelSpec:
        return model_spec(self.name)


class HiddenConfig(ModelConfig):
    """A model with a hidden width."""

    hidden_dim: int = Field(default=128, ge=1, le=LARGEST_WIDTH)
    """Width of the hidden layers."""


class BlockConfig(HiddenConfig):
    """Hidden layers with norm and dropout."""

    dropout: float = Field(default=0.3, ge=0, lt=1)
    """Dropout between hidden layers; LargeGT: in the FFN that joins local and global."""
    norm: Literal["layer", "batch", "none"] = "layer"
    """Norm between hidden layers; LargeGT: of the FFN block and of Eqn 6. none: no norm."""


class AttentionConfig(HiddenConfig):
    """Multi-head attention."""

    num_heads: int = Field(default=2, ge=1, le=LARGEST_WIDTH)
    """Attention heads; LargeGT: of the LocalModule."""
    head_dim: int | None = Field(default=None, ge=1, le=LARGEST_WIDTH)
    """Width of each head; hidden_dim / num_heads when not given. The published configuration has hidden_dim."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights; above 0, a CPU cannot use its fast attention kernels."""

    @model_validator(mode="after")
    def _check_heads(self) -> AttentionConfig:
        _check_heads(self.hidden_dim, self.num_heads, self.head_dim)
        return self


class EncoderConfig(AttentionConfig):
    """A Transformer encoder over tokens."""

    num_layers: int = Field(default=1, ge=1, le=1000)
    """Encoder layers."""
    ffn_ratio: float = Field(default=2.0, ge=0, le=1000)
    """Width of the encoder's feed-forward part as a multiple of hidden_dim; 0 leaves it out, as published."""
    encoder_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the outputs of attention and feed-forward part."""
    init: Literal["default", "normal"] = "default"
    """normal: N(0, 0.02) weights and zero biases in the encoder, as published."""


class SampledNeighborsConfig(BlockConfig):
    """Message passing over sampled neighbours."""

    fanouts: tuple[int, ...] = (20, 10)
    """Neighbours sampled per hop, from the node outwards; its length is the number of layers; -1 takes all."""

    @field_validator("fanouts", mode="before")
    @classmethod
    def _read_fanouts(cls, fanouts: Any) -> Any:
        return several(fanouts)

    @field_validator("fanouts")
    @classmethod
    def _check_fanouts(cls, fanouts: tuple[int, ...]) -> tuple[int, ...]:
        if not 1 <= len(fanouts) <= 100 or any((one < 1 and one != -1) or one > LARGEST_COUNT for one in fanouts):
            raise ValueError(
                f"{','.join(map(str, fanouts)) or 'nothing'}: give a number per hop, -1 for all neighbours"
            )
        return fanouts


class CodebookConfig(Settings):
    """The GlobalModule's codebook and its attention (Algorithm 3)."""

    num_centroids: int = Field(default=1024, ge=1, le=2**24)
    """Number of centroids (the paper's B, where it is 4096)."""
    dim: int = Field(default=64, ge=1, le=LARGEST_WIDTH)
    """Width of MLP_a's output, the feature half of a centroid."""
    num_heads: int = Field(default=2, ge=1, le=LARGEST_WIDTH)
    """Attention heads over the codebook."""
    head_dim: int | None = Field(default=None, ge=1, le=LARGEST_WIDTH)
    """Width of a head; hidden_dim / num_heads when not given."""
    ema_decay: float = Field(default=0.99, gt=0, lt=1)
    """Decay of the EMA k-means."""
    eps: float = Field(default=1e-5, gt=0)
    """Laplace smoothing of the cluster sizes."""
    dead_code_threshold: float = Field(default=0.05, ge=0)
    """Centroids with an EMA size below this fraction of the mean move to random batch nodes. 0, as published: never."""


class CodebookModelConfig(HiddenConfig):
    """A model with a codebook."""

    codebook: CodebookConfig = CodebookConfig()

    @model_validator(mode="after")
    def _check_codebook_heads(self) -> CodebookModelConfig:
        _check_heads(self.hidden_dim, self.codebook.num_heads, self.codebook.head_dim, "codebook.")
        return self


class NodeLabelsConfig(ModelConfig):
    """Training labels around a node as an input."""

    neighbor_label_hops: int = Field(default=0, ge=0, le=2)
    """Input the label distribution of training nodes within this many hops, never the node's own label. Paper: 0."""

    def label_width(self, num_labels: int) -> int:
        """Numbers in the label distributions: per hop a share for each label, and the share of training nodes."""
        return self.neighbor_label_hops * (1 + num_labels)


class LocalInputsConfig(ModelConfig):
    """Inputs per local node, beside its tokens."""

    hop_embedding: bool = True
    """Add a learned vector to each token: its hop, and whether it is the node's own. Off as published."""
    hop_distance_embedding: bool = False
    """Add a learned vector to the tokens of direct neighbours. Off as published."""
    label_embeddings: bool = False
    """Embed the labels of local nodes that are training nodes, never the node's own label. Off as published."""
    local_label_histograms: bool = False
    """Input the label distribution around each local node, never the node's own label. Off as published."""
    local_node_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the local nodes that a training step drops, never the node itself."""


class InputDropoutConfig(ModelConfig):
    """Dropout before the first layer."""

    input_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the features; LargeGT: on the tokens of the LocalModule."""


class AnyLargeGTConfig(BlockConfig, NodeLabelsConfig):
    """What all forms of LargeGT have."""

    residual: bool = True
    """Add the node's own projected features (Eqn 6)."""


class LargeGTGlobalConfig(AnyLargeGTConfig, CodebookModelConfig):
    """LargeGT without the LocalModule."""

    name: str = "largegt-global"


class LargeGTLocalConfig(AnyLargeGTConfig, EncoderConfig, LocalInputsConfig, InputDropoutConfig):
    """LargeGT without the GlobalModule."""

    name: str = "largegt-local"


class LargeGTConfig(LargeGTLocalConfig, CodebookModelConfig):
    """LargeGT with both modules."""

    name: str = "largegt-full"


class LINKXConfig(BlockConfig):
    """linkx."""

    name: str = "linkx"
    num_layers: int = Field(default=1, ge=1, le=1000)
    """Hidden layers of the head; mlp has one more."""


class MLPConfig(LINKXConfig, NodeLabelsConfig):
    """mlp, sign."""

    name: str = "mlp"


class SGCConfig(NodeLabelsConfig, InputDropoutConfig):
    """sgc."""

    name: str = "sgc"


class GraphSAGEConfig(SampledNeighborsConfig, InputDropoutConfig):
    """graphsage."""

    name: str = "graphsage"


class GTSparseConfig(GraphSAGEConfig, AttentionConfig):
    """gt-sparse."""

    name: str = "gt-sparse"


class GATConfig(GTSparseConfig):
    """gat."""

    name: str = "gat"
    residual: bool = True
    """A linear skip from the target; false: the form of the first paper, with attention to the target itself."""


class NAGphormerConfig(EncoderConfig, NodeLabelsConfig):
    """nagphormer."""

    name: str = "nagphormer"


class GOATLocalConfig(SampledNeighborsConfig, AttentionConfig):
    """GOAT without the codebook."""

    name: str = "goat-local"


class GOATCodebookConfig(CodebookConfig):
    """The codebook of GOAT."""

    variant: Literal["largegt", "goat"] = "largegt"
    """goat: GOAT's own attention and codebook initialisation; dead centroids never move."""


class GOATGlobalConfig(BlockConfig, CodebookModelConfig):
    """GOAT without the neighbourhood."""

    name: str = "goat-global"
    codebook: GOATCodebookConfig = GOATCodebookConfig()


class GOATConfig(GOATLocalConfig, GOATGlobalConfig):
    """GOAT with both halves."""

    name: str = "goat-full"


def _check_heads(hidden_dim: int, num_heads: int, head_dim: int | None, prefix: str = "") -> None:
    if head_dim is None and hidden_dim % num_heads:
        raise ValueError(
            f"hidden_dim ({hidden_dim}) must be a multiple of {prefix}num_heads ({num_heads}), or give {prefix}head_dim"
        )


@dataclass(frozen=True)
class ModelSpec:
    """A registered model."""

    name: str
    cls: type | str
    """The class, a NodeModel, or its path: "package.module:Class"."""
    settings: type[ModelConfig]
    """The settings class: each field is `model.FIELD`."""
    title: str
    """Name in tables."""
    inputs: tuple[Input, ...] = ()
    """Inputs beside the node's features."""
    prepare: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Required settings of the preparation: {"tokens": {"separate_directions": False}}."""
    search: Mapping[str, str] = field(default_factory=dict)
    """Settings for tuning to search beside the common ones: {"model.my_setting": "1,2,3"}."""
    new_nodes: bool = True
    """Whether the model can predict nodes that are not in the store."""
    about: str = ""
    """One-line description for lists of models."""

    def load(self) -> Any:
        """The class."""
        if not isinstance(self.cls, str):
            return self.cls
        module, _, name = self.cls.partition(":")
        return getattr(import_module(module), name)

    @property
    def needs(self) -> dict[str, dict[str, Any]]:
        """The preparation settings that the model requires: without local nodes nothing is sampled, and a model that
        samples neighbours from the store needs the features of all nodes."""
        needs: dict[str, dict[str, Any]] = {name: dict(settings) for name, settings in self.prepare.items()}
        for is_needed, table, setting, value in (
            ("local_nodes" not in self.inputs, "local_nodes", "k", 1),
            (not {"local_nodes", "contexts"} & {*self.inputs}, "tokens", "num_hops", 0),
            ("neighbors" in self.inputs, "tokens", "precompute_for", "all"),
            ("positions" not in self.inputs, "positional_encoding", "method", "none"),
        ):
            if is_needed:
                needs.setdefault(table, {})[setting] = value
        return needs


_BASELINES = "largegt.models.baselines"
_GOAT, _LARGEGT = f"{_BASELINES}.goat:GOAT", "largegt.models.largegt.model:LargeGT"
_MODELS = {spec.name: spec for spec in (
    ModelSpec("largegt-full", _LARGEGT, LargeGTConfig, "LargeGT-full", ("local_nodes", "contexts", "positions"),
              about="LargeGT: a Transformer over local nodes, and attention to a codebook of the whole graph"),
    ModelSpec("largegt-local", _LARGEGT, LargeGTLocalConfig, "LargeGT-local", ("local_nodes", "contexts"),
              about="LargeGT without the codebook"),
    ModelSpec("largegt-global", _LARGEGT, LargeGTGlobalConfig, "LargeGT-global", ("positions",),
              about="LargeGT without local nodes"),
    ModelSpec("mlp", f"{_BASELINES}.feature_models:MLP", MLPConfig, "MLP",
              about="an MLP on the node's own features: no graph"),
    ModelSpec("sgc", f"{_BASELINES}.feature_models:SGC", SGCConfig, "SGC", ("contexts",),
              {"tokens": {"separate_directions": False}}, about="a linear layer on features averaged over hops"),
    ModelSpec("sign", f"{_BASELINES}.feature_models:SIGN", MLPConfig, "SIGN", ("contexts",),
              about="an MLP on the averaged features of each hop"),
    ModelSpec("linkx", f"{_BASELINES}.linkx:LINKX", LINKXConfig, "LINKX", new_nodes=False,
              about="an MLP on a learned vector for each neighbour, and features"),
    ModelSpec("graphsage", f"{_BASELINES}.graphsage:GraphSAGE", GraphSAGEConfig, "GraphSAGE", ("neighbors",),
              about="means over sampled neighbours, layer by layer"),
    ModelSpec("gat", f"{_BASELINES}.gat:GAT", GATConfig, "GAT", ("neighbors",),
              about="attention to sampled neighbours, layer by layer"),
    ModelSpec("gt-sparse", f"{_BASELINES}.gt_sparse:GTSparse", GTSparseConfig, "GT-sparse", ("neighbors",),
              about="dot-product attention to sampled neighbours, layer by layer"),
    ModelSpec("nagphormer", f"{_BASELINES}.nagphormer:NAGphormer", NAGphormerConfig, "NAGphormer",
              ("contexts", "positions"), about="a Transformer over the averaged features of each hop"),
    ModelSpec("goat-local", _GOAT, GOATLocalConfig, "GOAT-local", ("neighbors",),
              about="attention to a sampled neighbourhood"),
    ModelSpec("goat-global", _GOAT, GOATGlobalConfig, "GOAT-global", ("positions",), new_nodes=False,
              about="attention to a codebook of the whole graph"),
    ModelSpec("goat-full", _GOAT, GOATConfig, "GOAT-full", ("neighbors", "positions"),
              about="goat-local and goat-global, joined"),
)}  # fmt: skip

Model = TypeVar("Model", bound=type)


def register_model(
    name: str, settings: type[ModelConfig], *, title: str = "", inputs: tuple[Input, ...] = (), **more: Any
) -> Callable[[Model], Model]:
    """A class decorator that registers a `NodeModel` under this name for all commands and functions.

    Args:
        name: the model's name, for `--model` and `model.name`.
        settings: the settings class, a subclass of `ModelConfig`: each field is `model.FIELD`.
        title: the name in tables; `name` when not given.
        inputs: the inputs beside the node's features: local_nodes, contexts, positions, neighbors.
        more: other fields of `ModelSpec`: prepare, search, new_nodes, about.

    A package registers its models through an entry point of the group `largegt.models` with the module's name.
    """

    def register(cls: Model) -> Model:
        _MODELS[name] = ModelSpec(name, cls, settings, title or name, inputs, **more)
        return cls

    return register


def model_specs() -> Iterator[ModelSpec]:
    """All models: those of this package, then registered ones."""
    load_plugins()
    yield from _MODELS.values()


def model_names() -> list[str]:
    return [spec.name for spec in model_specs()]


def model_spec(name: str) -> ModelSpec:
    """The registry entry of a model."""
    if name not in _MODELS:
        load_plugins()
    if name not in _MODELS:
        raise UnknownModelError(
            f"no model {name!r}{nearest(name, _MODELS)}; there are: {', '.join(_MODELS)}, and those whose module is "
            "imported or installed (register_model)"
        )
    return _MODELS[name]


@cache
def load_plugins() -> None:
    """Import the modules of all entry points `largegt.models`, which register models and metrics."""
    for plugin in entry_points(group="largegt.models"):
        plugin.load()


def model_config(name: str, **settings: Any) -> ModelConfig:
    """The settings of a model; settings that are not given have their defaults."""
    return read_model({"name": name, **settings})


def read_model(tree: Mapping[str, Any]) -> ModelConfig:
    """The settings of the model `tree["name"]`. Refuses settings that this model does not read."""
    name = tree.get("name", LargeGTConfig().name)
    spec = model_spec(str(name))
    own = setting_names(spec.settings)
    for setting, _ in leaves(tree):
        if setting not in own:
            others = [other.name for other in model_specs() if setting in setting_names(other.settings)]
            if others:
                raise ConfigError(f"{name} does not read model.{setting}, a setting of {', '.join(others)}")
    return build(spec.settings, {**tree, "name": name}, "model.")


def settings_read(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings in another model's `tree` that the model `name` also reads."""
    own = setting_names(model_spec(name).settings)

    def read(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        return {
            key: read(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
            for key, value in table.items()
            if any(one == prefix + key or one.startswith(f"{prefix}{key}.") for one in own)
        }

    return read(tree, "")


def overrides_read(overrides: Iterable[str], name: str) -> list[str]:
    """The `a.b=c` overrides without settings that only models other than `name` read."""
    own = setting_names(model_spec(name).settings, "model.")
    every = {setting for spec in model_specs() for setting in setting_names(spec.settings, "model.")}
    return [one for one in overrides if one.partition("=")[0].strip() not in every.difference(own)]
