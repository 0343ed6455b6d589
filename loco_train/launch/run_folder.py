"""The folder of a run: of one run only, and in use by one launcher at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loco_train.config.compare import differences, run_digest
from loco_train.config.load import ResolvedRun, load_run
from loco_train.config.save import save_resolved
from loco_train.errors import ConfigError, EnvironmentProblem

_LOCK = ".launcher.lock"


@dataclass(frozen=True)
class ClaimedFolder:
    """A run's folder that no other launcher uses. run_id: made at the first start, the same at every later one."""

    path: Path
    run_id: str

    @property
    def settings(self) -> Path:
        """The resolved settings, each with its origin."""
        return self.path / "run.yaml"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"


@contextmanager
def claim_run_folder(resolved: ResolvedRun) -> Iterator[ClaimedFolder]:
    """Make the run's folder, or take up the one of an earlier start, and keep other launchers out of it meanwhile.

    Raises:
        ConfigError: the folder holds another run; nothing in it was changed.
        EnvironmentProblem: another launcher runs it now, or it cannot be made or written.
    """
    path = Path(resolved.config.run_dir)
    _make(path, resolved)
    with _locked(path):
        _refuse_other_run(path, resolved)
        yield ClaimedFolder(path, _claim(path, resolved))


def _claim(path: Path, resolved: ResolvedRun) -> str:
    """The run's id, after digest, id and settings are in the folder."""
    with _write_errors(path):
        run_id = _read(path / "run_id") or uuid.uuid4().hex
        # The digest first: a folder with an id but no digest would let any run in.
        _publish(path / "run_digest", run_digest(resolved.config))
        _publish(path / "run_id", run_id)
        save_resolved(resolved, ClaimedFolder(path, run_id).settings)
    return run_id


def claim_island_folder(resolved: ResolvedRun) -> None:
    """Keep an island's settings, each with its origin, in its own folder. For rank 0, before it writes anything else.

    Raises:
        ConfigError: the folder holds an island of another run; nothing in it was changed.
        EnvironmentProblem: it cannot be made or written.
    """
    folder = Path(resolved.config.run_dir) / "islands" / str(resolved.config.islands.index)
    _make(folder, resolved)
    with _write_errors(folder):
        _publish(folder / "run_digest", run_digest(resolved.config))
        save_resolved(resolved, folder / "run.yaml")


def clear_run_folder(path: Path, *, keep: str) -> None:
    """Remove all of a run but the entry `keep`.

    Raises:
        EnvironmentProblem: a launcher runs it now.
        ConfigError: it is not the folder of a run; nothing was removed.
    """
    if not path.is_dir():
        return
    others = [entry.name for entry in path.iterdir() if entry.name not in (keep, _LOCK)]
    if others and not (path / "run_digest").is_file():
        # A mistyped run_dir must not cost anybody his files.
        raise ConfigError(
            f"{path} is not the folder of a run, and is left as it is",
            got=f"no run_digest in it, but {', '.join(sorted(others)[:3])}",
            fix="check run_dir=..., or remove the folder yourself",
        )
    with _locked(path):
        for entry in path.iterdir():
            if entry.name not in (keep, _LOCK):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _make(path: Path, resolved: ResolvedRun) -> None:
    with _write_errors(path):
        _refuse_other_run(path, resolved)
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be the folder of a run",
            got=error.strerror or str(error),
            fix="choose another with run_dir=..., or make room for it and see that it may be written",
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Held by the open file, so that the kernel gives it up even when this process is killed.
    with (path / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentProblem(
                f"another launcher runs {path} now",
                fix="wait for it or end it, or give this run a folder of its own: run_dir=...",
            ) from None
        yield


def _refuse_other_run(path: Path, resolved: ResolvedRun) -> None:
    found = _read(path / "run_digest")
    if found is None or found == run_digest(resolved.config):
        return
    raise ConfigError(
        f"{path} holds another run",
        got=_changes(path / "run.yaml", resolved) or "settings that differ from those it was started with",
        allowed="the settings that the run was started with; islands resume from its checkpoints",
        fix="give this run a folder of its own (run_dir=...), take the change back, or move the old folder away"
        + ("" if _has_checkpoints(path) else "; it has saved no checkpoint: removing it loses its logs alone"),
    )


def _has_checkpoints(path: Path) -> bool:
    """Of any island, whether `path` is the run's folder or an island's."""
    return any(any(path.glob(f"{islands}checkpoints/*")) for islands in ("", "islands/*/"))


def _changes(settings: Path, resolved: ResolvedRun) -> str:
    """`rounds: 10 there, 20 now; …`, or nothing when the old settings cannot be read any more."""
    try:
        saved = load_run(settings).config
    except (ConfigError, OSError):
        return ""
    found = differences(saved.model_dump(mode="json"), resolved.config.model_dump(mode="json"))
    return "; ".join(f"{key}: {old!r} there, {new!r} now" for key, old, new in found)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _publish(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)
