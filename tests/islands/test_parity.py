"""Every layout trains as one process does: losses, gradients and parameters in fp32, clipping active."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from loco_train.islands.logical import cut_shard
from loco_train.shards import Shard
from loco_train.testing import World, run_ranks
from loco_train.testing.tiny import island_batch, micro_batches, tiny_run

Overrides = dict[str, Any]
STEPS = 3
# One step of plain SGD with lr 1 moves each parameter by its clipped gradient.
SGD: Overrides = {"optimizer.kind": "sgd", "optimizer.weight_decay": 0.0, "optimizer.clip_grad_norm": 0.5}
ADAMW: Overrides = {"optimizer.clip_grad_norm": 0.5}
TIED: Overrides = {"model.tied_embeddings": True}


def degrees(tensor: int = 1, pipeline: int = 1, data: int = 1, zero: int = 1) -> Overrides:
    return {
        "parallel.tensor": tensor,
        "parallel.pipeline": pipeline,
        "parallel.data": data,
        "parallel.zero_stage": zero,
    }


TWO_RANKS: dict[str, Overrides] = {
    "TP2": degrees(tensor=2),
    "PP2": degrees(pipeline=2),
    "PP2 tied": degrees(pipeline=2) | TIED,
    "PP2 three layers": degrees(pipeline=2) | {"model.layers": 3},
    "DP2 ZeRO 1": degrees(data=2),
    "DP2 ZeRO 2": degrees(data=2, zero=2),
    "DP2 ZeRO 3": degrees(data=2, zero=3),
    "DP2 ZeRO 3 tied, nothing kept gathered": degrees(data=2, zero=3) | TIED | {"kept": 0},
    "TP2 tied": degrees(tensor=2) | TIED,
}
FOUR_RANKS: dict[str, Overrides] = {
    "TP2 PP2": degrees(tensor=2, pipeline=2),
    "TP2 DP2": degrees(tensor=2, data=2),
    "TP2 DP2 ZeRO 2 tied": degrees(tensor=2, data=2, zero=2) | TIED,
    "TP2 DP2 ZeRO 3": degrees(tensor=2, data=2, zero=3),
    "PP2 DP2": degrees(pipeline=2, data=2),
    "PP2 DP2 tied": degrees(pipeline=2, data=2) | TIED,
    "TP2 PP2 tied": degrees(tensor=2, pipeline=2) | TIED,
}
ONE_RANK: dict[str, Overrides] = {
    "one rank": degrees(),
    "recompute": degrees() | {"recompute": "full"},
    "one large micro-batch": degrees() | {"batch.micro": 8},
}


def read_owned(engine: Any) -> list[tuple[Shard, Tensor]]:
    flat = torch.zeros(engine.views.owned.numel)
    engine.views.read(flat)
    return [(shard, flat[first:end].clone()) for shard, first, end in engine.views.owned.ranges()]


def heldout_batch(run: Any, *, step: int) -> Tensor:
    """Of another shape and another number of micro-batches than a training step's."""
    return island_batch(run, step=100 + step)[:6, :10]


def train(overrides: Overrides) -> dict[str, Any]:
    """Losses, held-out losses and gradient norms of some steps, and the owned shards after them."""
    from loco_train.islands import build_engine, engine, join_island

    run, device = tiny_run({k: v for k, v in overrides.items() if k != "kept"}), torch.device("cpu")
    engine.PERSISTENT_PARAMETER_ELEMENTS = overrides.get("kept", 100_000)
    layout = join_island(run, device=device)
    trained = build_engine(run, layout, device=device)
    lr = 1.0 if run.optimizer.kind == "sgd" else 2e-2
    figures = []
    for step in range(STEPS):
        batch = micro_batches(run, island_batch(run, step=step), data_index=layout.data_index)
        heldout = trained.evaluate(list(heldout_batch(run, step=step).chunk(layout.data)[layout.data_index].split(1)))
        result = trained.step(batch, lr=lr)
        figures.append((result.loss, result.grad_norm, heldout))
    owned = read_owned(trained)
    trained.close()
    return {"figures": figures, "owned": owned}


def train_by_both(world: World, overrides: Overrides) -> dict[str, Any]:
    return {"sgd": train(SGD | overrides), "adamw": train(ADAMW | overrides)}


def train_plainly(world: World, overrides: Overrides) -> dict[str, Any]:
    """The same by PyTorch alone: one process, the whole batch at once, no DeepSpeed, no views."""
    from loco_train.islands import initial_values, join_island
    from loco_train.islands.inner_optimizer import build_inner_optimizer
    from loco_train.islands.logical import logical_of
    from loco_train.islands.model import Blueprint, Decoder, layer_specs

    run = tiny_run(overrides)
    layout = join_island(run, device=torch.device("cpu"))
    decoder = Decoder(layer_specs(Blueprint.of(run, layout)))
    named, value = {logical_of(p).name: p for p in decoder.parameters()}, initial_values(run.model, seed=run.seed)
    for name, parameter in named.items():
        parameter.data.copy_(value(name, tuple(parameter.shape)))
    optimizer = build_inner_optimizer(run.optimizer, named.values(), device=torch.device("cpu"), zero_stage=1)
    for group in optimizer.param_groups:
        group["lr"] = 1.0 if run.optimizer.kind == "sgd" else 2e-2
    figures = []
    for step in range(STEPS):
        batch, heldout = island_batch(run, step=step), heldout_batch(run, step=step)
        with torch.no_grad():
            heldout_loss = decoder(heldout[:, :-1].contiguous(), heldout[:, 1:].contiguous())
        loss = decoder(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(named.values(), run.optimizer.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        figures.append((loss.item(), norm.item(), heldout_loss.item()))
    return {"figures": figures, "parameters": {name: p.detach() for name, p in named.items()}}


def whole_parameters(ranks: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Logical parameters from every rank's owned shards, each element held exactly once."""
    wholes, counts = {}, {}
    for shard, values in (held for rank in ranks for held in rank["owned"]):
        whole = wholes.setdefault(shard.name, torch.zeros(shard.shape))
        count = counts.setdefault(shard.name, torch.zeros(whole.numel(), dtype=torch.int64))
        places = cut_shard(torch.arange(whole.numel()).view(shard.shape), shard)
        whole.view(-1)[places] = values
        count[places] += 1
    assert all((count == 1).all() for count in counts.values()), "not covered exactly once"
    return wholes


@pytest.fixture(scope="module")
def plain() -> dict[str, dict[str, Any]]:
    """By number of layers, tying and optimizer."""
    variants = {
        f"{kind} {layers} {tied}": optimizer | {"model.layers": layers, "model.tied_embeddings": tied}
        for kind, optimizer in (("sgd", SGD), ("adamw", ADAMW))
        for layers, tied in ((2, False), (2, True), (3, False))
    }
    return {name: run_ranks(train_plainly, overrides, ranks=1)[0] for name, overrides in variants.items()}


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, str], list[dict[str, Any]]]:
    found = {}
    for ranks, layouts in ((1, ONE_RANK), (2, TWO_RANKS), (4, FOUR_RANKS)):
        for name, overrides in layouts.items():
            by_rank = run_ranks(train_by_both, overrides, ranks=ranks)
            found |= {(name, kind): [rank[kind] for rank in by_rank] for kind in ("sgd", "adamw")}
    return found


LAYOUTS = ONE_RANK | TWO_RANKS | FOUR_RANKS


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_one_plain_process(plain: Any, runs: Any, name: str, kind: str) -> None:
    ranks, overrides = runs[name, kind], LAYOUTS[name]
    expected = plain[f"{kind} {overrides.get('model.layers', 2)} {overrides.get('model.tied_embeddings', False)}"]
    for rank in ranks:
        for (loss, norm, heldout), wanted in zip(rank["figures"], expected["figures"], strict=True):
            assert loss == pytest.approx(wanted[0], abs=1e-5)
            assert norm == pytest.approx(wanted[1], rel=1e-5)
            assert norm > 0.5, "clipping was not active"
            assert heldout == pytest.approx(wanted[2], abs=1e-5)
    found = whole_parameters(ranks)
    assert found.keys() == expected["parameters"].keys()
    for parameter, values in expected["parameters"].items():
        torch.testing.assert_close(found[parameter], values, atol=1e-5, rtol=0, msg=lambda m, n=parameter: f"{n}: {m}")


def test_recompute_changes_no_bit(runs: Any) -> None:
    (recomputed,), (kept,) = runs["recompute", "adamw"], runs["one rank", "adamw"]
    assert recomputed["figures"] == kept["figures"]
    for (_, a), (_, b) in zip(recomputed["owned"], kept["owned"], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", LAYOUTS)
def test_starts_near_a_uniform_guess_over_the_real_vocabulary(runs: Any, name: str) -> None:
    assert runs[name, "sgd"][0]["figures"][0][0] == pytest.approx(math.log(61), abs=0.2)
