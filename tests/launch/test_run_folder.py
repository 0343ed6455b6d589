from pathlib import Path

import pytest

from loco_train.config.load import ResolvedRun
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.launch.run_folder import claim_run_folder
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
