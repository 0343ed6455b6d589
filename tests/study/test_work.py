"""A study from its first run to its table, stopped and gone on with."""

import json

import pytest

from loco_train.errors import ConfigError, DataError
from loco_train.study.report import write_table
from loco_train.study.work import final_trials, run, tune


@pytest.fixture
def done(place):
    """A place whose study is finished."""
    tune(place, told=lambda line: None)
    run(place, told=lambda line: None)
    return place


def test_a_study_runs_and_a_second_time_does_nothing(done):
    tuning, final = done.read_tuning(), done.read_final()
    assert len(tuning) == 2 * 3
    assert {(r.variant, r.islands, r.seed) for r in final} == {
        (variant, islands, seed) for variant, islands in (("diloco", 2), ("pairs", 2), ("pairs", 4)) for seed in (0, 1)
    }
    assert all(row.loss and row.commit == "abc1234" and row.tokens == (20 * 4 + 8 * 4) * 16 for row in final)
    told: list[str] = []
    tune(done, told=told.append)
    run(done, told=told.append)
    assert (done.read_tuning(), done.read_final()) == (tuning, final)
    assert "0 runs to do" in told
    assert all(line.startswith("0 runs") for line in told)


def test_what_was_cut_off_is_done_again_to_the_same_row(done):
    rows = done.read_final()
    for path, kept in ((done.tuning_rows, 4), (done.final_rows, 3)):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    tune(done, told=lambda line: None)
    run(done, told=lambda line: None)
    assert [(r.trial, r.loss) for r in done.read_final()] == [(r.trial, r.loss) for r in rows]


def test_only_a_part(place):
    with pytest.raises(ConfigError, match="no such part"):
        tune(place, parts=["z"])


def test_what_is_not_tuned_is_not_run(place):
    with pytest.raises(ConfigError, match=r"diloco on 2 islands is not tuned(.|\n)*`tune` first"):
        final_trials(place)


def test_a_broken_line_is_named(done):
    with done.final_rows.open("a") as file:
        file.write('{"study": "tiny", "var\n')
    with pytest.raises(DataError, match="study.jsonl:7 is no row of a study"):
        run(done)


def test_a_row_of_another_study_is_refused(done):
    lines = done.tuning_rows.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"study": "other"})
    done.tuning_rows.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"study-tuning.jsonl:2 is a row of another study(.|\n)*'other'"):
        write_table(done)


def test_the_table_is_made_of_the_rows(done):
    written = write_table(done)
    assert [path.name for path in written] == ["study.md", "study-a.svg"]
    text = written[0].read_text()
    row = next(r for r in done.read_final() if (r.variant, r.islands, r.seed) == ("pairs", 2, 0))
    assert "averaging is best" in text
    assert f"{row.outer_lr:.3g}" in text
    assert "6 final runs" in text
    assert "2 of 2 searches are complete" in text
    assert "![Two methods](study-a.svg)" in text
    again = write_table(done)
    assert again[0].read_text() == text
