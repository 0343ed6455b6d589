"""Mix2 is widened and narrowed in the same round on all islands, also over a resume, and then more travels."""

import pytest

from loco_train.telemetry.events import HealthMeasured, Mix2Changed, RoundDone
from loco_train.telemetry.report import events_path, read_events
from loco_train.testing import run_islands
from loco_train.testing.runs import train_until

ROUNDS = 7
ISLANDS = 3
RUN = {
    "rounds": ROUNDS,
    "method.inner_steps": 4,
    "method.mix1.peers": "all",
    # With a rate that falls from so high the islands go apart and come together again within a few rounds.
    "optimizer.lr": 0.02,
    "schedule.warmup_fraction": 0.0,
    "health.every_rounds": 1,
    "checkpoint.every_steps": 2,
}
METHODS = {
    "mix2 nobody, TP 2": {"method.mix2": {"peers": "nobody"}, "parallel.tensor": 2},
    "mix2 of a subset": {"method.mix2": {"peers": "random-pair", "blocks": ["embedding", "layers.0"]}},
}
POLICY = {"health.policy": {"rise": 1.3, "fall": 1.1, "window": 2}}


def told(folder, island: int, kind: type) -> dict:
    """By round, the last one where a resume told it again."""
    return {event.round: event for event in read_events(events_path(folder, island)) if isinstance(event, kind)}


@pytest.mark.parametrize("name", METHODS)
def test_islands_switch_together_and_a_resume_changes_nothing(name, tiny_data, tmp_path):
    ranks = METHODS[name].get("parallel.tensor", 1)
    base = {**tiny_data, **RUN, **POLICY, **METHODS[name]}

    def run(folder: str, stop: tuple[int, str] | None = None, **changes) -> list:
        settings = {**base, "run_dir": str(tmp_path / folder), **changes}
        return run_islands(train_until, settings, stop, islands=ISLANDS, ranks=ranks)

    unbroken = run("unbroken")
    changes = [told(tmp_path / "unbroken", island, Mix2Changed) for island in range(ISLANDS)]
    assert changes[0] == changes[1] == changes[2]
    rounds = sorted(changes[0])
    assert [changes[0][round].wide for round in rounds] == [True, False]
    widened, narrowed = rounds

    for folder, stop in (
        ("inside", (narrowed, "inside")),
        # The round's judgement is in the checkpoint that a failed exchange leaves, and is made again.
        ("exchange", (widened, "exchange")),
    ):
        assert run(folder, stop) == [[{}] * ranks] * ISLANDS
        assert run(folder) == unbroken
        for island in range(ISLANDS):
            assert told(tmp_path / folder, island, Mix2Changed) == changes[0]

    measured = told(tmp_path / "unbroken", 0, HealthMeasured)
    assert changes[0][widened].js == measured[widened].js > 1.3 * changes[0][widened].usual_js
    plain = run("plain", **{"health.policy": None})
    assert plain != unbroken
    # One island of three has no partner in a round: bytes of all islands. An event of a round that is done is told in
    # the next.
    sent, sent_plainly = (
        {
            round: sum(told(tmp_path / folder, island, RoundDone)[round + 1].bytes_sent for island in range(ISLANDS))
            for round in range(ROUNDS)
        }
        for folder in ("unbroken", "plain")
    )
    wide = {round for round in range(ROUNDS) if widened <= round < narrowed}
    assert {round for round in range(ROUNDS) if sent[round] > sent_plainly[round]} == wide
    assert {round: sent[round] for round in range(ROUNDS) if round not in wide} == {
        round: sent_plainly[round] for round in range(ROUNDS) if round not in wide
    }
