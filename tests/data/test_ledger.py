import pytest

from loco_train.data.ledger import Entry, Ledger, Range, coverage
from loco_train.errors import DataError


def _two_islands(folder, *, rounds=3, steps=2, batch=4):
    """Ledgers of two islands: a round is island 0's 8 samples, then island 1's."""
    ledgers = [Ledger(folder / f"{island}.jsonl") for island in range(2)]
    for round_number in range(rounds):
        for step in range(steps):
            for island, ledger in enumerate(ledgers):
                first = ((round_number * 2 + island) * steps + step) * batch
                ledger.record(round_number, island, first, first + batch)
    return ledgers


def test_a_whole_run_is_covered_exactly(tmp_path):
    paths = [ledger.path for ledger in _two_islands(tmp_path)]
    found = coverage(paths)
    assert found.exact
    assert found.consumed == Range(0, 48)
    assert coverage(paths[:1]).gaps == (Range(8, 16), Range(24, 32))
    assert coverage([tmp_path / "none.jsonl"]).consumed == Range(0, 0)


def test_gaps_and_repeats_are_found(tmp_path):
    first, second = _two_islands(tmp_path)
    second.record(3, 1, 56, 60)
    first.record(3, 0, 44, 50)
    first.record(4, 0, 0, 4)
    first.record(4, 0, 4, 8)
    found = coverage([second.path, first.path])
    assert found.gaps == (Range(50, 56),)
    assert found.repeats == (Range(0, 8), Range(44, 48))
    assert not found.exact
    assert str(found.repeats[0]) == "0..7"


def test_a_range_inside_another_is_a_repeat(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    for first, stop in ((0, 100), (10, 20), (50, 60), (100, 110)):
        ledger.record(0, 0, first, stop)
    assert coverage([ledger.path]).repeats == (Range(10, 20), Range(50, 60))
    assert coverage([ledger.path]).gaps == ()


@pytest.mark.parametrize(
    ("round_number", "stop", "last"), [(1, 20, 20), (1, 16, 8), (1, 18, 18), (2, 32, 24), (3, 48, 40)]
)
def test_resume_forgets_what_the_checkpoint_does_not_hold(tmp_path, round_number, stop, last):
    ledger = _two_islands(tmp_path)[0]
    whole = ledger.entries()
    ledger.truncate_to(round=round_number, stop=stop)
    kept = ledger.entries()
    assert kept[-1].stop == last
    assert kept[:-1] == whole[: len(kept) - 1]
    # Consumed again from there, each sample stands in the ledger once.
    for entry in whole:
        if (entry.round, entry.stop) > (kept[-1].round, kept[-1].stop):
            ledger.record(entry.round, 0, max(entry.first, stop), entry.stop)
    assert coverage([ledger.path, tmp_path / "1.jsonl"]).exact


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path):
    ledger = _two_islands(tmp_path)[0]
    whole = ledger.entries()
    with open(ledger.path, "a") as file:
        file.write('{"round": 3, "isl')
    assert ledger.entries() == whole
    ledger.truncate_to(round=3, stop=48)
    ledger.record(3, 0, 48, 52)
    assert ledger.entries() == [*whole, Entry(3, 0, 48, 52)]


def test_a_damaged_line_is_named(tmp_path):
    ledger = _two_islands(tmp_path)[0]
    ledger.path.write_text("garbage\n" + ledger.path.read_text())
    with pytest.raises(DataError, match="line 1 is damaged"):
        ledger.entries()


def test_nothing_to_forget(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.truncate_to(round=0, stop=0)
    assert ledger.entries() == []


def test_a_ledger_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        Ledger(tmp_path / "no" / "l.jsonl").record(0, 0, 0, 1)
