from pathlib import Path

import pytest

from loco_train.config.load import ResolvedRun, load_run
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.launch.run_folder import claim_island_folder, claim_run_folder, clear_run_folder
from loco_train.testing.tiny import tiny_run


def resolved(folder: Path, **settings: object) -> ResolvedRun:
    return ResolvedRun(tiny_run({"run_dir": str(folder), **settings}), {})


def test_a_folder_is_used_by_one_launcher_at_a_time(tmp_path: Path) -> None:
    run = resolved(tmp_path)
    with claim_run_folder(run), pytest.raises(EnvironmentProblem, match="another launcher runs"):
        claim_run_folder(run).__enter__()
    with claim_run_folder(resolved(tmp_path)) as folder:
        assert folder.run_id == (tmp_path / "run_id").read_text().strip()


def test_another_name_is_another_run(tmp_path: Path) -> None:
    with claim_run_folder(resolved(tmp_path)):
        pass
    with pytest.raises(ConfigError, match="name: 'tiny' there, 'other' now"):
        claim_run_folder(resolved(tmp_path, name="other")).__enter__()


def test_a_run_that_has_saved_nothing_may_be_removed(tmp_path: Path) -> None:
    with claim_run_folder(resolved(tmp_path)):
        pass
    with pytest.raises(ConfigError, match="it has saved no checkpoint"):
        claim_run_folder(resolved(tmp_path, name="other")).__enter__()
    (tmp_path / "islands/1/checkpoints/step-8").mkdir(parents=True)
    with pytest.raises(ConfigError, match="move the old folder away$"):
        claim_run_folder(resolved(tmp_path, name="other")).__enter__()


def test_settings_that_do_not_change_the_run_may_change(tmp_path: Path) -> None:
    with claim_run_folder(resolved(tmp_path)) as before:
        pass
    with claim_run_folder(resolved(tmp_path, **{"checkpoint.keep_last": 5})) as after:
        assert after.run_id == before.run_id
        assert "keep_last: 5" in after.settings.read_text()


def test_another_run_is_refused_even_when_its_settings_cannot_be_read(tmp_path: Path) -> None:
    with claim_run_folder(resolved(tmp_path)):
        pass
    (tmp_path / "run.yaml").write_text("an: older format")
    with pytest.raises(ConfigError, match="settings that differ"):
        claim_run_folder(resolved(tmp_path, rounds=9)).__enter__()


def test_a_folder_that_is_no_runs_is_never_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.tex").write_text("years of work")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not the folder of a run, and is left as it is"):
        clear_run_folder(tmp_path, keep="data")
    assert (tmp_path / "thesis" / "text.tex").read_text() == "years of work"


def test_an_island_keeps_its_settings_and_lets_no_other_run_in(tmp_path: Path) -> None:
    claim_island_folder(load_run("quickstart", [f"run_dir={tmp_path}", "islands.index=1"]))
    folder = tmp_path / "islands" / "1"
    assert load_run(folder / "run.yaml").config.islands.index == 1
    before = sorted(folder.iterdir())
    with pytest.raises(ConfigError, match="optimizer.lr: .* there, 0.5 now"):
        claim_island_folder(load_run("quickstart", [f"run_dir={tmp_path}", "islands.index=1", "optimizer.lr=0.5"]))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("claim", [lambda run: claim_run_folder(run).__enter__(), claim_island_folder])
@pytest.mark.parametrize("place", ["file", "file/inside", "/proc/run"])
def test_a_place_that_can_be_no_folder_is_told(claim, place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EnvironmentProblem, match="(?s)cannot be the folder of a run.*got:.*to do: choose another"):
        claim(resolved(tmp_path / place))
    assert (tmp_path / "file").read_text() == "mine"
