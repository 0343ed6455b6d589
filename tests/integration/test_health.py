"""Consensus health over real islands, whatever their parallelism, is what one process finds from their models."""

import math

import pytest
import torch

from loco_train.blocks import block_names, block_of
from loco_train.outer.health import js_distance
from loco_train.telemetry.events import HealthMeasured, RoundDone
from loco_train.telemetry.report import events_path, read_events
from loco_train.testing import World, run_islands, run_ranks
from loco_train.testing.consensus import assembled, js_tolerance, mean_of, owned_parameters, speak
from loco_train.testing.runs import state_digests, tiny_trainer
from loco_train.testing.tiny import tiny_run

LAYOUTS = {
    "one rank": {},
    "TP 2": {"parallel.tensor": 2},
    "PP 2": {"parallel.pipeline": 2},
    "PP 2 tied": {"parallel.pipeline": 2, "model.tied_embeddings": True},
    "ZeRO 2": {"parallel.data": 2, "parallel.zero_stage": 2},
    "ZeRO 3": {"parallel.data": 2, "parallel.zero_stage": 3},
}
# A rate at which three steps take the islands far apart: JS distances of some hundredths.
RUN = {"method.inner_steps": 3, "optimizer.lr": 0.02, "schedule.kind": "constant", "schedule.warmup_fraction": 0.0}
SEQUENCES = 8


def measured(folder, island: int) -> list[HealthMeasured]:
    return [e for e in read_events(events_path(folder, island)) if isinstance(e, HealthMeasured)]


def keep_ends(world: World, settings: dict) -> list:
    """This rank's owned shards at the last measurement, which must leave everything as it was."""
    trainer = tiny_trainer(world, settings)
    measure = trainer.health.before_outer_step
    found = []

    def look(progress):
        before = state_digests(trainer)
        measure(progress)
        assert state_digests(trainer) == before
        trainer.engine.views.verify_copies()
        found[:] = owned_parameters(trainer)

    trainer.health.before_outer_step = look
    trainer.run()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_is_what_one_process_finds_from_the_gathered_models(layout, tiny_data, tmp_path):
    islands, ranks = 3, 1 if layout == "one rank" else 2
    settings = {**tiny_data, **RUN, **LAYOUTS[layout], "rounds": 2, "run_dir": str(tmp_path)}
    settings |= {"health.every_rounds": 2, "health.sequences": SEQUENCES, "method.mix1.peers": "all"}
    settings |= {"method.mix2.peers": "random-pair", "health.js_by_block": True}
    ends = [assembled(island) for island in run_islands(keep_ends, settings, islands=islands, ranks=ranks)]
    mean = mean_of(ends)
    tied = bool(LAYOUTS[layout].get("model.tied_embeddings"))
    blocks = block_names(layers=2, tied=tied)
    of_block = [
        {name: end[name] if block_of(name) == block else mean[name] for name in mean}
        for block in blocks
        for end in ends
    ]
    ((consensus, *said),) = run_ranks(speak, settings, [mean, *ends, *of_block], SEQUENCES, ranks=1)
    apart, *apart_by_block = torch.tensor([js_distance(logits, consensus) for logits in said]).split(islands)

    events = [measured(tmp_path, island) for island in range(islands)]
    assert [[e.round for e in island] for island in events] == [[1]] * islands
    found = [island[0] for island in events]
    shared = [(e.js, e.l2, e.l2_by_block, e.js_by_block) for e in found]
    assert shared[0] == shared[1] == shared[2]

    tolerance = js_tolerance(consensus)
    assert float(apart.mean()) > 100 * tolerance
    assert [e.js_here for e in found] == pytest.approx(apart.tolist(), abs=tolerance)
    assert list(found[0].js_by_block) == list(blocks)
    by_block = [float(distances.mean()) for distances in apart_by_block]
    assert max(by_block) > 100 * tolerance
    assert list(found[0].js_by_block.values()) == pytest.approx(by_block, abs=tolerance)
    assert found[0].js == pytest.approx(sum(e.js_here for e in found) / islands, rel=1e-12)

    assert list(found[0].l2_by_block) == list(blocks)
    for block, distance in [*found[0].l2_by_block.items(), (None, found[0].l2)]:
        names = [name for name in mean if block in (None, block_of(name))]
        wanted = [math.sqrt(sum(float((end[n] - mean[n]).square().sum()) for n in names)) for end in ends]
        # A sum of three, a division and a difference in fp32: three half ulps of a parameter.
        norm = math.sqrt(sum(float(mean[n].square().sum()) for n in names))
        assert distance == pytest.approx(sum(wanted) / islands, abs=1.5 * 1.2e-7 * norm)
        assert distance > 0


def train(world: World, settings: dict) -> dict[str, str]:
    trainer = tiny_trainer(world, settings)
    trainer.run()
    return state_digests(trainer)


@pytest.mark.parametrize("mix1", ["all", "nobody"])
def test_bytes_and_seconds_are_its_own_and_training_is_untouched(mix1, tiny_data, tmp_path):
    base = {**tiny_data, **RUN, "rounds": 2, "parallel.tensor": 2, "method.mix1.peers": mix1, "model.vocab_size": 300}
    ends = {}
    for name, every in (("watched", 1), ("unwatched", None)):
        settings = {**base, "run_dir": str(tmp_path / name), "health.every_rounds": every}
        ends[name] = run_islands(train, settings, islands=2, ranks=2)
    assert ends["watched"] == ends["unwatched"]

    rounds = {
        name: [e for e in read_events(events_path(tmp_path / name, 0)) if isinstance(e, RoundDone)] for name in ends
    }
    assert [e.bytes_sent for e in rounds["watched"]] == [e.bytes_sent for e in rounds["unwatched"]]
    for event in rounds["watched"]:
        # As without: what the sockets carry beside the payload is framing.
        assert event.bytes_sent <= event.socket_bytes_sent < 1.05 * event.bytes_sent + 20_000
    run = tiny_run(base)
    padded = run.model.parameters + 2 * 4 * run.model.hidden_size  # 304 rows of embedding and head
    for event in measured(tmp_path / "watched", 0):
        # The mean of two islands sends each parameter once; buffers are padded to 128 elements a shard. Each of the
        # two ranks then tells its counterpart JS, L2 in all and of each block, in fp64.
        assert event.js_by_block == {}
        told = 2 * 8 * (2 + len(event.l2_by_block))
        assert 0 <= event.bytes_sent - told - 4 * padded < 4 * 128 * 2 * 20
        assert event.seconds > 0
