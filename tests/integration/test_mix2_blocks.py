"""The blocks of mix2 are those that the islands' models, put together in one process, say are heard most."""

import pytest
from loco_kernels.block_select import choose_blocks

from loco_train.blocks import block_names, block_of
from loco_train.outer.health import js_distance
from loco_train.telemetry.events import BlocksMeasured, RoundDone
from loco_train.telemetry.report import events_path, read_events
from loco_train.testing import World, run_islands, run_ranks
from loco_train.testing.consensus import assembled, js_tolerance, mean_of, owned_parameters, speak
from loco_train.testing.runs import state_digests, tiny_trainer, train_until

ISLANDS = 2
SEQUENCES = 8
BLOCKS = block_names(layers=2, tied=False)
RUN = {
    "rounds": 4,
    "method.inner_steps": 3,
    "optimizer.lr": 0.02,
    "schedule.kind": "constant",
    "schedule.warmup_fraction": 0.0,
    "health.sequences": SEQUENCES,
    "checkpoint.every_steps": 2,
    "method.mix1.peers": "all",
    # Enough for about half of the tiny model.
    "method.mix2": {"peers": "random-pair", "blocks": "measured", "budget": "100kB", "measure_every_rounds": 2},
}
LAYOUTS = {
    "TP 2": {"parallel.tensor": 2},
    "PP 2": {"parallel.pipeline": 2},
    "ZeRO 3": {"parallel.data": 2, "parallel.zero_stage": 3},
}


def told(folder, island: int = 0) -> list[BlocksMeasured]:
    return [e for e in read_events(events_path(folder, island)) if isinstance(e, BlocksMeasured)]


def keep_ends(world: World, settings: dict) -> tuple[list, dict[int, tuple[str, ...]]]:
    """This rank's owned shards at the measurement of the first round; by round, the blocks that mix2 mixed in it."""
    trainer = tiny_trainer(world, settings)
    measure, exchange = trainer.health.before_outer_step, trainer.outer_step.run
    ends, mixed = [], {}

    def look(progress):
        before = state_digests(trainer)
        measure(progress)
        assert state_digests(trainer) == before
        trainer.engine.views.verify_copies()
        if progress.round == 0:
            ends[:] = owned_parameters(trainer)

    def note_blocks(progress, *, learned):
        ranges = trainer.outer_step.method.mix2.ranges
        owned = trainer.engine.views.owned.ranges()
        mixed[progress.round] = {
            block_of(shard.name) for shard, first, end in owned for a, b in ranges if a <= first and end <= b
        }
        return exchange(progress, learned=learned)

    trainer.health.before_outer_step, trainer.outer_step.run = look, note_blocks
    trainer.run()
    return ends, mixed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_are_what_one_process_finds_from_the_gathered_models(layout, tiny_data, tmp_path):
    settings = {**tiny_data, **RUN, **LAYOUTS[layout], "run_dir": str(tmp_path)}
    found = run_islands(keep_ends, settings, islands=ISLANDS, ranks=2)
    ends = [assembled([ends for ends, _ in island]) for island in found]
    mean = mean_of(ends)
    left_out = [
        {name: end[name] if block_of(name) == block else mean[name] for name in mean}
        for end in ends
        for block in BLOCKS
    ]
    ((consensus, *said),) = run_ranks(speak, settings, [mean, *left_out], SEQUENCES, ranks=1)
    each = [float(js_distance(logits, consensus)) for logits in said]
    wanted = [sum(each[index :: len(BLOCKS)]) / ISLANDS for index in range(len(BLOCKS))]

    events = [told(tmp_path, island) for island in range(ISLANDS)]
    assert [event.round for event in events[0]] == [0, 2]
    for first, second in zip(*events, strict=True):
        assert (first.js_by_block, first.bytes_by_block, first.chosen) == (
            second.js_by_block,
            second.bytes_by_block,
            second.chosen,
        )
    first, last = events[0]
    tolerance = js_tolerance(consensus)
    assert max(wanted) > 100 * tolerance
    assert list(first.js_by_block) == list(BLOCKS)
    assert list(first.js_by_block.values()) == pytest.approx(wanted, abs=tolerance)
    # In fp32, with the rows that pad the vocabulary to a multiple of 8 times the tensor parallel ranks.
    padding = {"embedding", "head"}
    for block in BLOCKS:
        real = sum(4 * mean[name].numel() for name in mean if block_of(name) == block)
        assert first.bytes_by_block[block] - real in ((0, 4 * 32 * 4) if block in padding else (0,)), block
    assert first.chosen == list(choose_blocks(first.js_by_block, first.bytes_by_block, budget=100e3))
    assert 0 < len(first.chosen) < len(BLOCKS)
    assert first.seconds > 0
    assert first.bytes_sent > 0

    # What was chosen is what is mixed, from that round on.
    for island in found:
        for round in range(4):
            mixed = set.union(*(mixed[round] for _, mixed in island))
            assert mixed == set((first if round < 2 else last).chosen)


def test_a_resume_changes_nothing_and_less_travels(tiny_data, tmp_path):
    base = {**tiny_data, **RUN}

    def run(folder: str, stop: tuple[int, str] | None = None, **changes) -> list:
        return run_islands(train_until, {**base, "run_dir": str(tmp_path / folder), **changes}, stop, islands=ISLANDS)

    unbroken = run("unbroken")
    # Chosen in round 0: a resume in round 1 does not measure, one in round 2 measures as the run before did.
    for stop in ((0, "exchange"), (1, "inside"), (1, "exchange"), (2, "exchange")):
        folder = f"{stop[0]}-{stop[1]}"
        assert run(folder, stop) == [[{}]] * ISLANDS
        assert run(folder) == unbroken, stop
    whole = {"peers": "random-pair"}
    assert run("whole", **{"method.mix2": whole}) != unbroken

    def sent(folder):
        return [e.bytes_sent for e in read_events(events_path(tmp_path / folder, 0)) if isinstance(e, RoundDone)]

    first, last = told(tmp_path / "unbroken")
    sizes = first.bytes_by_block
    # A round of two islands sends each parameter once for mix1 and once for mix2; buffers pad shards to 128 elements.
    for round, (some, all_of_it) in enumerate(zip(sent("unbroken"), sent("whole"), strict=True)):
        left_out = sum(sizes[block] for block in sizes if block not in (first if round < 2 else last).chosen)
        assert 0 <= all_of_it - some - left_out < 4 * 128 * 20
