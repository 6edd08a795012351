"""GOAT: a node attends to every node of its sampled neighbourhood at once (local), to the codebook of the whole graph
(global), or to both (full).

Axes: b batch, u nodes of all neighbourhoods, m members of one, f input features, p positional width, d hidden width,
h heads, w width of a head, s distances.

Local: x = W_in H + b_in; q from the target, k and v from the members, score q·k/√w + bias[distance, head]
− log(members at that distance), so that the weight of a distance does not depend on its number of members. As in
models/largegt/attention.py, linear maps of the members are applied after the sum over them:

    q_i · k_j = (W_inᵀ W_kᵀ q_i) · H_j + const
    Σ_j p_ij v_j = W_v (W_in Σ_j p_ij H_j + b_in Σ_j p_ij) + b_v Σ_j p_ij,

so targets attend to the members' features. Cost: O(b·m·h·f) time and O(b·m·(f + h)) memory, without a projection of
each member.

Global: models/largegt/global_module.py. With `--original` (`model.codebook.variant=goat`) GOAT's own variant: the query
is not normalised, the heads go straight into the FFN, and the codebook starts at random. Then FFN and output layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import CodebookConfig, GOATGlobalConfig, GOATLocalConfig
from largegt.loader.batch import TokenBatch
from largegt.models.base import DataShape, NodeModel, NodeOutput
from largegt.models.largegt.codebook import NORM_EPSILON, NORM_MOMENTUM, Codebook
from largegt.models.largegt.global_module import GlobalModule
from largegt.models.largegt.model import make_norm

from .batch import NeighborhoodBatch
from .message_passing import gather


class NeighborhoodAttention(nn.Module):
    """Features [u, f] and neighbourhoods → H_local [b, h·w], the heads concatenated."""

    def __init__(self, num_features: int, config: GOATLocalConfig) -> None:
        super().__init__()
        width, self.num_heads, self.dropout = config.hidden_dim, config.num_heads, config.attention_dropout
        self.head_dim = config.head_dim or max(1, width // config.num_heads)
        self.input = nn.Linear(num_features, width)
        self.query = nn.Linear(width, self.out_width)
        self.key = nn.Linear(width, self.out_width, bias=False)  # a bias would cancel in the softmax
        self.value = nn.Linear(width, self.out_width)
        self.distance_bias_hs = nn.Parameter(torch.zeros(self.num_heads, len(config.fanouts) + 1))

    @property
    def out_width(self) -> int:
        return self.num_heads * self.head_dim

    def forward(self, features_uf: Tensor, member_bm: Tensor, distance_bm: Tensor) -> Tensor:
        members_bmf = gather(features_uf, member_bm)
        q_bhw = self.query(self.input(members_bmf[:, 0])).view(len(member_bm), self.num_heads, -1)
        q_bhf = torch.einsum("bhw,hwd->bhd", q_bhw, self._per_head(self.key.weight)) @ self.input.weight
        score_bhm = q_bhf @ members_bmf.to(q_bhf.dtype).transpose(1, 2) * self.head_dim**-0.5
        score_bhm = score_bhm + self._distance_scores(distance_bm)
        weight_bhm = score_bhm.softmax(dim=-1)
        if self.training and self.dropout:
            weight_bhm = F.dropout(weight_bhm, self.dropout)
        total_bh1 = weight_bhm.sum(dim=2, keepdim=True)
        sum_bhf = weight_bhm.to(members_bmf.dtype) @ members_bmf
        sum_bhd = F.linear(sum_bhf, self.input.weight) + total_bh1 * self.input.bias
        y_bhw: Tensor = torch.einsum("bhd,hwd->bhw", sum_bhd, self._per_head(self.value.weight))
        y_bhw = y_bhw + total_bh1 * self.value.bias.view(self.num_heads, -1)
        return y_bhw.flatten(1)

    def _distance_scores(self, distance_bm: Tensor) -> Tensor:
        """[b, h, m] bias of each member's distance − log(members at that distance); -inf for padding."""
        distance_bm = distance_bm.long()
        number_s = torch.arange(self.distance_bias_hs.shape[1], device=distance_bm.device)
        count_bs = (distance_bm[:, :, None] == number_s).sum(dim=1)
        bias_bhs = self.distance_bias_hs - count_bs.clamp(min=1).to(self.distance_bias_hs.dtype).log()[:, None]
        place_bhm = distance_bm.clamp(min=0)[:, None].expand(-1, self.num_heads, -1)
        return bias_bhs.gather(2, place_bhm).masked_fill(distance_bm[:, None] < 0, -torch.inf)

    def _per_head(self, weight: Tensor) -> Tensor:
        """[h·w, d] → [h, w, d]."""
        return weight.view(self.num_heads, self.head_dim, -1)


class GOATCodebook(Codebook):
    """EMA k-means as in GOAT's public code: centroids, their sums and the attended table start as independent N(0, 1)
    tables with sizes 0, every node starts with a random centroid, smoothed sizes are written back, and dead centroids
    do not move."""

    output: Tensor
    """[c, w] centroids in the scale of the input, which nodes attend to."""

    def __init__(self, num_nodes: int, width: int, config: CodebookConfig) -> None:
        super().__init__(num_nodes, width, config)
        self.register_buffer("output", torch.randn_like(self.centroids))
        self.ema_sum.normal_()
        self.ema_size.zero_()
        self.assignment.random_(config.num_centroids)
        self.counts.copy_(torch.bincount(self.assignment.long(), minlength=config.num_centroids))
        self.started.fill_(True)

    def query_space(self, z_bw: Tensor) -> Tensor:
        """z unchanged: `output` is in the scale of the input."""
        return z_bw

    def attended(self) -> Tensor:
        return self.output

    def _normalize_batch(self, z_bw: Tensor, counts: list[int]) -> Tensor:
        """nn.BatchNorm1d without gain: its running variance is unbiased."""
        number = sum(counts)
        if number < 2:
            return self.normalize(z_bw)
        variance, mean = self._moments(z_bw, counts)
        self.mean.lerp_(mean, NORM_MOMENTUM)
        self.variance.lerp_(variance * (number / (number - 1)), NORM_MOMENTUM)
        return (z_bw - mean) * torch.rsqrt(variance + NORM_EPSILON)

    def _move(self, z_bw: Tensor, nearest_b: Tensor, order_a: Tensor, counts: list[int]) -> None:
        self._average(z_bw, nearest_b)
        self.ema_size.copy_(self._smoothed_sizes())
        self.centroids.copy_(self.ema_sum / self.ema_size[:, None])
        self.output.copy_(self.centroids * torch.sqrt(self.variance + NORM_EPSILON) + self.mean)


class GOATGlobalModule(GlobalModule):
    """Features [b, f] and positions [b, p] → H_global [b, h·w], the heads concatenated as in GOAT, and the joined
    vector for the codebook."""

    codebook_class = GOATCodebook

    def __init__(self, num_features: int, num_positions: int, num_nodes: int, config: GOATGlobalConfig) -> None:
        super().__init__(num_features, num_positions, num_nodes, config)
        self.out_width = self.query.out_features
        self.mlp_b, self.norm = nn.Identity(), nn.Identity()


class GOAT(NodeModel):
    """`goat-local`, `goat-global` or `goat-full`, by the configuration's class. goat-global reads TokenBatches."""

    num_local_nodes = 1
    reads = "neighborhoods"

    def __init__(self, shape: DataShape, config: GOATLocalConfig | GOATGlobalConfig) -> None:
        super().__init__()
        self.local_module: NeighborhoodAttention | None = None
        self.global_module: GlobalModule | None = None
        width, joined = config.hidden_dim, 0
        if isinstance(config, GOATLocalConfig):
            self.fanouts = config.fanouts
            self.local_module = NeighborhoodAttention(shape.num_features, config)
            joined += self.local_module.out_width
        else:
            self.reads = "tokens"
        if isinstance(config, GOATGlobalConfig):
            make = GOATGlobalModule if config.codebook.variant == "goat" else GlobalModule
            self.global_module = make(shape.num_features, shape.num_positions, shape.num_nodes, config)
            joined += self.global_module.out_width
        self.ffn = nn.Sequential(
            nn.Linear(joined, width), make_norm(config.norm, width), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(width, width), make_norm(config.norm, width), nn.ReLU(), nn.Dropout(config.dropout),
        )  # fmt: skip
        self.head = nn.Linear(width, shape.num_outputs)

    def forward(self, batch: NeighborhoodBatch | TokenBatch) -> NodeOutput:
        parts: list[Tensor] = []
        joined = None
        if isinstance(batch, TokenBatch):
            own_bf = batch.tokens[:, 0]
        else:
            own_bf = batch.features[batch.member[:, 0]]
            if self.local_module is not None:
                parts.append(self.local_module(batch.features, batch.member, batch.distance))
        if self.global_module is not None:
            global_bd, joined = self.global_module(own_bf, batch.positions)
            parts.append(global_bd)
        h_bd = self.ffn(torch.cat(parts, dim=1))
        return NodeOutput(logits=self.head(h_bd), hidden=h_bd, nodes=batch.nodes, codebook_input=joined)

    def update_codebook(self, output: NodeOutput) -> None:
        """Take one step of EMA k-means; does nothing without a GlobalModule."""
        if self.global_module is not None and output.codebook_input is not None:
            self.global_module.codebook.update(output.codebook_input, output.nodes)
