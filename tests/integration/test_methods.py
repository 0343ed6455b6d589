"""Every named method over real islands follows the simulator from the same weights and samples, whatever the islands'
parallelism: other model code, other optimizer code, fp64, and q, k, v, gate and up apart from the start."""

from typing import Any

import pytest
import torch
from torch import Tensor

from loco_train.checkpoint.assemble import piece_view
from loco_train.config.load import available, load_run
from loco_train.outer import outer_method
from loco_train.shards import FlatLayout, Partition, Shard
from loco_train.simulation.lockstep import LockStep
from loco_train.testing import World, run_islands
from loco_train.testing.runs import tiny_trainer
from loco_train.testing.simulated import SimulatedRun, stacked_weights
from loco_train.testing.tiny import tiny_run

ROUNDS = 3
# What has no file of its own: by name the method it changes, and how.
VARIANTS = {
    **{kind: ("diloco", {"aggregator": {"kind": kind}}) for kind in ("ties", "dare", "tsv-m", "iso-cts")},
    "by tokens": ("factored-local-m1m2", {"inner_steps": [2, 1, 3], "weighting": "tokens"}),
}
LAYOUTS = {
    "one rank": {},
    "TP 2": {"parallel.tensor": 2},
    "ZeRO 1": {"parallel.data": 2},
    "ZeRO 2": {"parallel.data": 2, "parallel.zero_stage": 2},
    "ZeRO 3": {"parallel.data": 2, "parallel.zero_stage": 3},
    "PP 2, tied": {"parallel.pipeline": 2, "model.tied_embeddings": True},
    "TP 4": {"parallel.tensor": 4, "model.key_value_heads": 4},
}
# No matrix is square with it: the smallest singular value of a square one may be near 0, and what Iso makes of that
# direction is then decided by the last bits of an fp32 gradient.
HEAD_DIM = 6

Owned = list[tuple[Shard, Tensor]]


def method_settings(name: str) -> dict[str, Any]:
    # Small outer lr: three rounds of 1.8 from fresh weights and one batch would blow up differences of rounding.
    named, changes = VARIANTS.get(name, (name, {}))
    count = 1 if named == "data-parallel" else 2
    method = load_run("quickstart", [f"method={named}", f"islands.count={count}"]).config.method
    return {"method": {**method.model_dump(mode="json"), "inner_steps": 2, **changes}, "method.outer.lr": 0.5}


def record(world: World, settings: dict, methods: list[str]) -> dict[str, list[Owned]]:
    """By method: this rank's owned shards at the start, then at the end of each round and after its outer step."""
    found = {}
    for name in methods:
        run = {**settings, **method_settings(name), "run_dir": f"{settings['run_dir']}/{name}"}
        trainer = tiny_trainer(world, run, run_id=name)
        points = found[name] = [_owned(trainer.engine.views)]
        step = trainer.outer_step.run

        def recorded(progress, *, learned, points=points, step=step, views=trainer.engine.views):
            points.append(_owned(views))
            report = step(progress, learned=learned)
            points.append(_owned(views))
            return report

        trainer.outer_step.run = recorded
        trainer.run()
        trainer.engine.close()
        if name != "data-parallel":
            trainer.outer_step.blocking.close()
            trainer.outer_step.behind.close()
    return found


def _owned(views) -> Owned:
    flat = torch.zeros(views.owned.numel)
    views.read(flat)
    return [(shard, flat[first:end].clone()) for shard, first, end in views.owned.ranges()]


def assembled(ranks: list[Owned]) -> dict[str, Tensor]:
    """Whole parameters by name."""
    pieces: dict[str, dict[Partition, list[tuple[int, Tensor]]]] = {}
    wholes = {}
    for shard, values in (pair for rank in ranks for pair in rank):
        wholes.setdefault(shard.name, torch.full(shard.shape, torch.nan))
        pieces.setdefault(shard.name, {}).setdefault(shard.partition, []).append((shard.start, values))
    for name, partitions in pieces.items():
        for partition, parts in partitions.items():
            view = piece_view(wholes[name], partition)
            view.copy_(torch.cat([values for _, values in sorted(parts, key=lambda part: part[0])]).view(view.shape))
    return dict(sorted(wholes.items()))


def trained(
    layout: str, methods: list[str], settings: dict, *, islands: int
) -> dict[str, list[list[dict[str, Tensor]]]]:
    """By method, time (as `record`) and island: whole parameters by name."""
    ranks = {"one rank": 1, "TP 4": 4}.get(layout, 2)
    results = run_islands(record, settings, methods, islands=islands, ranks=ranks, timeout_seconds=280)
    return {
        name: [[assembled([rank[name][p] for rank in island]) for island in results] for p in range(2 * ROUNDS + 1)]
        for name in methods
    }


def settings_of(layout: str, tiny_data: dict, run_dir) -> dict[str, Any]:
    own = {"rounds": ROUNDS, "precision.parameters": "fp32", "model.head_dim": HEAD_DIM, "run_dir": str(run_dir)}
    return {**tiny_data, **LAYOUTS[layout], **own}


# DARE draws what it drops by the names of the parameters, and the simulator has q, k, v apart: it has its own test.
ALONE, TP_4, OWN_NAMES = ["data-parallel"], ["isoloco"], ["dare"]
OTHERS = [name for name in (*available("methods"), *VARIANTS) if name not in ALONE + OWN_NAMES]
# Megatron leaves process groups behind each time an island is joined: some methods in one process, not all.
SHARES = [ALONE, *(OTHERS[first::4] for first in range(4))]
# TP 4, eight processes, for the method whose aggregator gathers whole matrices over TP (T6).
CASES = [*((layout, share) for layout in LAYOUTS if layout != "TP 4" for share in SHARES), ("TP 4", TP_4)]


@pytest.mark.parametrize(("layout", "methods"), CASES, ids=lambda it: it if isinstance(it, str) else ", ".join(it))
def test_follows_the_simulator(layout, methods, tiny_data, tmp_path):
    settings = settings_of(layout, tiny_data, tmp_path)
    islands = 1 if methods == ALONE else 2 if methods == TP_4 else 3
    points = trained(layout, methods, settings, islands=islands)
    for name in methods:
        run = tiny_run({**settings, **method_settings(name), "islands.count": islands})
        start, *after = ([stacked_weights(run, island) for island in time] for time in points[name][::2])
        simulated = SimulatedRun(run, start[0]).rounds()
        apart = [float((torch.stack(each) - own).abs().max()) for each, own in zip(after, simulated, strict=True)]
        # The parameters move by 1e-3 to 2e-2; rounding alone accounts for 1e-6.
        assert max(apart) <= 1e-5, (name, apart)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "TP 4"])
def test_dare_follows_the_simulator_in_the_trainers_names(layout, tiny_data, tmp_path):
    settings = settings_of(layout, tiny_data, tmp_path)
    points = trained(layout, ["dare"], settings, islands=3)["dare"]
    run = tiny_run({**settings, **method_settings("dare"), "islands.count": 3})
    names = {name: tuple(whole.shape) for name, whole in points[0][0].items()}
    buffer = FlatLayout.of(tuple(Shard(n, s, Partition(), 0, torch.Size(s).numel()) for n, s in names.items()))
    times = [torch.stack([flat(island, buffer) for island in time]) for time in points]
    method = outer_method(
        run.method, islands=3, layout=buffer, matrices=None, layers=run.model.layers, tied=run.model.tied_embeddings
    )
    islands = LockStep.from_start(method, times[0][0], islands=3, seed=run.seed)
    for number, (end, after) in enumerate(zip(times[1::2], times[2::2], strict=True)):
        islands.round(number, lambda _, start, end=end: end)
        torch.testing.assert_close(islands.parameters, after, rtol=0, atol=1e-6)


def flat(parameters: dict[str, Tensor], layout: FlatLayout) -> Tensor:
    buffer = torch.zeros(layout.numel)
    for shard, first, end in layout.ranges():
        buffer[first:end] = parameters[shard.name].flatten()
    return buffer
