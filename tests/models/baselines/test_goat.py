"""GOAT against a loop over targets, heads and members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import GOATCodebookConfig, ModelConfig, model_config
from largegt.config.schema import Config
from largegt.errors import ConfigError
from largegt.loader.batch import TokenBatch
from largegt.models.base import DataShape
from largegt.models.baselines.batch import NeighborhoodBatch
from largegt.models.baselines.goat import GOAT, GOATCodebook, GOATGlobalModule, NeighborhoodAttention
from largegt.models.baselines.neighbors import NeighborSampler
from oracles import attention, convolutions
from oracles.goat_codebook import GOATKMeans, attend

MEMBERS = [
    [(9, 0), (3, 1), (4, 1), (5, 2), (1, 2), (6, 2)],
    [(1, 0), (2, 1)],
    [(2, 0)],
    [(3, 0), (7, 1), (8, 1), (9, 1), (0, 1), (4, 2)],
]
"""Four targets with (row, distance) of each member; one is alone."""


def config_of(name: str = "goat-full", **settings: Any) -> ModelConfig:
    """Local heads as wide as hidden, as published."""
    config: dict[str, Any] = {"hidden_dim": 6}
    if name != "goat-global":
        config |= {"num_heads": 2, "head_dim": 6, "fanouts": (3, 2)}
    if name != "goat-local":
        config["codebook"] = {"num_centroids": 5, "dim": 4}
    return model_config(name, **{**config, **settings})


def padded(members: list[list[tuple[int, int]]], width: int) -> tuple[Tensor, Tensor]:
    """(member, distance), padding at the target's own row."""
    rows = [[*around, *[(around[0][0], -1)] * (width - len(around))] for around in members]
    both = torch.tensor(rows)
    return both[:, :, 0], both[:, :, 1].to(torch.int8)


def make_batch(width: int = 6, seed: int = 0) -> NeighborhoodBatch:
    g = torch.Generator().manual_seed(seed)
    member, distance = padded(MEMBERS, width)
    return NeighborhoodBatch(
        nodes=torch.tensor([10, 11, 12, 13]), features=torch.randn(10, 5, generator=g, dtype=torch.float64),
        member=member, distance=distance, positions=torch.randn(4, 3, generator=g, dtype=torch.float64),
        labels=torch.tensor([0, 1, 2, 0]),
    )  # fmt: skip


def make_model(name: str = "goat-full", **settings: Any) -> GOAT:
    torch.manual_seed(0)
    model = GOAT(DataShape(5, 3, 20, 3), config_of(name, **settings)).double().eval()
    if model.local_module is not None:
        nn.init.normal_(model.local_module.distance_bias_hs)
    return model


@pytest.mark.parametrize("settings", [{}, {"num_heads": 1, "head_dim": 4}, {"num_heads": 3, "head_dim": None}])
@pytest.mark.parametrize("width", [6, 9])
def test_local_attention_against_a_loop(settings: dict[str, Any], width: int) -> None:
    module = make_model("goat-local", **settings).local_module
    assert module is not None
    batch = make_batch(width)
    features = batch.features.requires_grad_()
    found = module(features, batch.member, batch.distance)
    expected = torch.stack([convolutions.goat(module, features, around) for around in MEMBERS])
    assert found.shape == (4, module.out_width)
    torch.testing.assert_close(found, expected)
    inputs = [features, *module.parameters()]
    factor = torch.randn_like(found)
    ours = torch.autograd.grad((found * factor).sum(), inputs)
    theirs = torch.autograd.grad((expected * factor).sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_distance_bias_starts_at_zero_and_padding_weighs_nothing() -> None:
    module = NeighborhoodAttention(5, config_of("goat-local")).double()
    assert module.distance_bias_hs.shape == (2, 3)
    assert (module.distance_bias_hs == 0).all()
    batch = make_batch(9)
    expected = module(batch.features, batch.member, batch.distance)
    other = torch.where(batch.distance < 0, 8, batch.member)
    torch.testing.assert_close(module(batch.features, other, batch.distance), expected)


def test_a_distance_weighs_as_one_however_many_are_there() -> None:
    """Members alike at each distance: each of three distances has a third of the weight."""
    module = NeighborhoodAttention(5, config_of("goat-local")).double().eval()
    nn.init.zeros_(module.key.weight)
    features = torch.randn(3, 5, dtype=torch.float64)
    member, distance = padded([[(0, 0), *[(1, 1)] * 7, *[(2, 2)] * 2]], 10)
    expected = module.value(module.input(features).mean(dim=0))
    torch.testing.assert_close(module(features, member, distance)[0], expected)


@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
@pytest.mark.parametrize("name", ["goat-local", "goat-global", "goat-full"])
def test_whole_model(name: str, norm: str) -> None:
    model, batch = make_model(name, norm=norm), make_batch()
    for module in model.ffn:
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    output = model(batch)
    parts = []
    if name != "goat-global":
        parts.append(torch.stack([convolutions.goat(model.local_module, batch.features, a) for a in MEMBERS]))
    if name != "goat-local":
        target = [around[0][0] for around in MEMBERS]
        rows = [
            attention.global_module(model.global_module, batch.features[i], p, [1] * 5)
            for i, p in zip(target, batch.positions, strict=True)
        ]
        parts.append(torch.stack(rows))
    first, norm_1, _, _, second, norm_2, _, _ = model.ffn
    hidden = F.relu(norm_2(second(F.relu(norm_1(first(torch.cat(parts, dim=1)))))))
    torch.testing.assert_close(output.hidden, hidden)
    torch.testing.assert_close(output.logits, model.head(hidden))
    assert output.nodes.tolist() == [10, 11, 12, 13]
    assert (output.codebook_input is None) == (name == "goat-local")


def test_the_codebook_moves_when_told() -> None:
    batch = make_batch()
    for name in ("goat-full", "goat-global"):
        model = make_model(name).train()
        output = model(batch)
        assert model.global_module is not None
        book = model.global_module.codebook
        assert int(book.counts.sum()) == 0
        model.update_codebook(output)
        assert int(book.counts.sum()) == 4
        assert (book.assignment[10:14] >= 0).all()
    local = make_model("goat-local")
    local.update_codebook(local(batch))


def own_codebook(seed: int = 0) -> GOATCodebook:
    torch.manual_seed(seed)
    return GOATCodebook(30, 3, GOATCodebookConfig(num_centroids=6, variant="goat")).double()


def as_oracle(book: GOATCodebook) -> GOATKMeans:
    tables = (book.centroids, book.output, book.ema_sum)
    return GOATKMeans(*(table.numpy().copy() for table in tables), assignment=book.assignment.tolist())


def test_its_own_codebook_starts_at_random_with_every_node_assigned() -> None:
    book = own_codebook()
    assert not torch.equal(book.centroids, book.output)
    assert not torch.equal(book.centroids, book.ema_sum)
    assert (book.ema_size == 0).all()
    assert book.counts.tolist() == torch.bincount(book.assignment.long(), minlength=6).tolist()
    assert int(book.counts.sum()) == 30
    large = GOATCodebook(100_000, 1, GOATCodebookConfig(num_centroids=10, variant="goat"))
    assert 9_000 < int(large.counts.min()) < int(large.counts.max()) < 11_000


def test_its_own_codebook_against_numpy() -> None:
    book = own_codebook()
    oracle = as_oracle(book)
    used = set()
    for step in range(300):
        rng = np.random.default_rng([3, step])
        nodes = rng.permutation(30)[:8]
        z = 3.0 * rng.normal(size=(8, 3)) + 5.0 * (nodes % 3)[:, None] + 1.0
        book.update(torch.from_numpy(z), torch.from_numpy(nodes))
        oracle.step(z, nodes)
        np.testing.assert_allclose(book.centroids, oracle.centroids, rtol=1e-6)
        np.testing.assert_allclose(book.output, oracle.output, rtol=1e-6)
        np.testing.assert_allclose(book.ema_size, oracle.sizes, rtol=1e-6)
        np.testing.assert_allclose(book.variance, oracle.variance, rtol=1e-6)
        assert book.counts.tolist() == oracle.counts()
        used |= set(oracle.assignment)
    assert len(used) > 1


def test_a_batch_of_one_node_changes_no_statistics() -> None:
    book = own_codebook()
    before = book.mean.clone()
    book.update(torch.full((1, 3), 4.0, dtype=torch.float64), torch.tensor([2]))
    assert torch.equal(book.mean, before)
    assert torch.isfinite(book.output).all()


@pytest.mark.parametrize("name", ["goat-global", "goat-full"])
def test_its_own_form_against_a_loop(name: str) -> None:
    """Joined vector → query as it is; keys and values of output centroids; heads go straight to the FFN."""
    codebook = {"num_centroids": 5, "dim": 4, "variant": "goat"}
    model, batch = make_model(name, codebook=codebook).train(), make_batch()
    for _ in range(3):
        model.update_codebook(model(batch))
    module = model.eval().global_module
    assert isinstance(module, GOATGlobalModule)
    book = module.codebook
    assert isinstance(book, GOATCodebook)
    found, joined = module(batch.features[batch.member[:, 0]], batch.positions)
    keys, values = (part.detach().numpy() for part in (module.key(book.output), module.value(book.output[:, :4])))
    query = module.query(joined).detach().numpy()
    counts = np.bincount(book.assignment.numpy(), minlength=5).tolist()
    expected = [attend(q, keys, values, counts, module.num_heads) for q in query]
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-9)
    assert found.shape == (4, module.out_width)
    parts = [found]
    if name == "goat-full":
        parts.insert(0, torch.stack([convolutions.goat(model.local_module, batch.features, a) for a in MEMBERS]))
    torch.testing.assert_close(model(batch).hidden, model.ffn(torch.cat(parts, dim=1)))


def test_its_own_form_learns_every_weight() -> None:
    model = make_model(codebook={"num_centroids": 5, "dim": 4, "variant": "goat"}, norm="layer", dropout=0.0)
    F.cross_entropy(model(make_batch()).logits, make_batch().labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_its_own_form_is_not_for_largegt() -> None:
    with pytest.raises(ConfigError, match=r"largegt-full does not read model\.codebook\.variant, a setting of goat"):
        Config.from_recipe("base", ["model.codebook.variant=goat"])


def test_global_reads_tokens() -> None:
    model, batch = make_model("goat-global"), make_batch()
    assert model.reads == "tokens"
    own = batch.features[batch.member[:, 0]]
    tokens = TokenBatch(batch.nodes, torch.stack([own, -own], dim=1), None, batch.positions, batch.labels)
    torch.testing.assert_close(model(tokens).logits, model(batch).logits)


@pytest.mark.parametrize("name", ["goat-local", "goat-full"])
def test_over_a_sample_of_all_neighbours(name: str) -> None:
    """A ring of 12: two hops are four nodes, and the node itself."""
    indices = np.array([[(i - 1) % 12, (i + 1) % 12] for i in range(12)]).ravel()
    sampler = NeighborSampler(np.arange(0, 25, 2), indices, [-1, -1], seed=0)
    seeds = [4, 0, 7]
    around = sampler.neighborhoods(torch.tensor(seeds))
    features = torch.randn(12, 5, dtype=torch.float64)
    model = make_model(name)
    batch = NeighborhoodBatch(
        nodes=around.nodes[:3], features=features[around.nodes], member=around.member, distance=around.distance,
        positions=torch.zeros(3, 3).double(), labels=torch.zeros(3, dtype=torch.int64),
    )  # fmt: skip
    found = model.local_module(batch.features, batch.member, batch.distance)  # type: ignore[misc]
    for row, i in enumerate(seeds):
        members = [(i, 0), *(((i + step) % 12, abs(step)) for step in (-1, 1, -2, 2))]
        torch.testing.assert_close(found[row], convolutions.goat(model.local_module, features, members))
    assert model(batch).logits.shape == (3, 3)


def test_attention_dropout_is_right_on_average() -> None:
    module = make_model("goat-local", attention_dropout=0.4).local_module
    assert module is not None
    batch, copies = make_batch(), 20_000
    member, distance = batch.member[:1].expand(copies, -1), batch.distance[:1].expand(copies, -1)
    with torch.no_grad():
        drawn = module.train()(batch.features, member, distance)
        plain = module.eval()(batch.features, batch.member[:1], batch.distance[:1])[0]
    assert drawn.std(dim=0).min() > 1e-3
    assert ((drawn.mean(dim=0) - plain) / drawn.std(dim=0) * copies**0.5).abs().max() < 5
