"""How a user names a checkpoint: a run folder, an island of it, or a checkpoint folder; with `@step` for a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loco_train.checkpoint.read import Checkpoint, older_choice, open_checkpoint, open_step
from loco_train.checkpoint.steps import MANIFEST, committed_steps, list_steps, step_name
from loco_train.errors import CheckpointError

_AT_STEP = re.compile(r"^(?P<path>.+)@(?P<step>\d+)$")


@dataclass(frozen=True)
class Selection:
    """Checkpoints of the same run at the same point: of all its islands in order, or of one island."""

    checkpoints: tuple[Checkpoint, ...]

    @property
    def first(self) -> Checkpoint:
        return self.checkpoints[0]

    @property
    def step(self) -> int:
        return self.first.manifest.header.step

    @property
    def size_bytes(self) -> int:
        return sum(checkpoint.size_bytes for checkpoint in self.checkpoints)

    def verify(self, *, on_bytes: Callable[[int], None] | None = None) -> None:
        """Compare all files with their hashes.

        Raises:
            CheckpointError: names the first that differs, and the newest older whole checkpoint of that island.
        """
        for checkpoint in self.checkpoints:
            try:
                checkpoint.verify(on_bytes=on_bytes)
            except CheckpointError as error:
                fix = older_choice(checkpoint.folder.parent, before=checkpoint.manifest.header.step)
                raise CheckpointError(error.problem, got=error.got, allowed=error.allowed, fix=fix) from error


def select_checkpoints(name: str | Path, *, step: int | None = None, island: int | None = None) -> Selection:
    """The checkpoints that `name` means.

    Args:
        name: RUN (all islands, at the newest point that all of them saved), RUN/islands/I or its folder of checkpoints
            (that island's newest), or a checkpoint folder; optionally followed by `@STEP`.
        step: the same as `@STEP`.
        island: only this island of a run.

    Raises:
        CheckpointError: there is none, it is not whole, or the islands do not fit each other.
    """
    path, step = _split_step(name, step)
    if (path / "islands").is_dir():
        return _select_run(path, step=step, island=island)
    if island is not None:
        raise CheckpointError(
            f"{path} is not the folder of a run, so it has no island {island}", fix="name the run folder"
        )
    if (path / MANIFEST).is_file():
        return _select_folder(path, step=step)
    checkpoints = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not list_steps(checkpoints):
        raise CheckpointError(
            f"no checkpoint in {path}",
            allowed="a run folder, RUN/islands/I, or a checkpoint folder; @STEP for a step",
            fix="check the path" if path.exists() else f"{path} does not exist",
        )
    return Selection((_open(checkpoints, step),))


def common_points(run_dir: Path) -> tuple[tuple[int, ...], ...]:
    """Points of the run that every island saved, up to the pointers, oldest first: each island's step there.

    Steps that all saved in the same round; with unequal numbers of inner steps there are none, and the ends of rounds
    count. Where an exchange failed, one island may have saved the last step of a round before its outer step and
    another after it: these are not the same point.
    """
    folders = [folder for _, folder in _island_folders(run_dir)]
    steps = [set(committed_steps(folder)) for folder in folders]
    shared = sorted(set.intersection(*steps)) if steps else []
    same = [s for s in shared if len({_place_of(folder, s)[0] for folder in folders} - {None}) <= 1]
    if same:
        return tuple((step,) * len(folders) for step in same)
    ends = [{_place_of(folder, step): step for step in own} for folder, own in zip(folders, steps, strict=True)]
    shared_ends = set.intersection(*map(set, ends)) if ends else set()
    rounds = sorted(place for place in shared_ends if place[1] == 0)
    return tuple(tuple(each[place] for each in ends) for place in rounds)


def _place_of(checkpoints: Path, step: int) -> tuple[int | None, int]:
    """(rounds done, steps into the round) at a saved step; (None, -1) where that cannot be read, which whoever opens
    the step is told."""
    try:
        header = open_checkpoint(checkpoints / step_name(step)).manifest.header
    except CheckpointError:
        return (None, -1)
    return header.round, header.steps_into_round


def _split_step(name: str | Path, step: int | None) -> tuple[Path, int | None]:
    match = _AT_STEP.match(str(name))
    if not match or Path(name).exists():
        return Path(name), step
    at_step = int(match["step"])
    if step is not None and step != at_step:
        raise CheckpointError("two steps were named", got=f"{name} and --step {step}", fix="name one")
    return Path(match["path"]), at_step


def _island_folders(run_dir: Path) -> list[tuple[int, Path]]:
    found = [entry for entry in (run_dir / "islands").iterdir() if entry.name.isdigit()]
    return [(int(entry.name), entry / "checkpoints") for entry in sorted(found, key=lambda e: int(e.name))]


def _select_run(run_dir: Path, *, step: int | None, island: int | None) -> Selection:
    folders = dict(_island_folders(run_dir))
    if island is not None:
        if island not in folders:
            raise CheckpointError(f"{run_dir} has no island {island}", allowed=", ".join(map(str, folders)) or "none")
        return Selection((_open(folders[island], step),))
    steps = _steps_of_islands(run_dir, folders, step=step)
    selection = Selection(tuple(_open(folder, each) for folder, each in zip(folders.values(), steps, strict=True)))
    _check_islands(run_dir, selection)
    return selection


def _steps_of_islands(run_dir: Path, folders: dict[int, Path], *, step: int | None) -> tuple[int, ...]:
    """Each island's step at the newest common point, or at the one that is `step` of the first island."""
    points = common_points(run_dir)
    if step is not None:
        # A step that is not common is opened on every island, so that the one without it is named.
        return next((point for point in points if point[0] == step), (step,) * len(folders))
    if not points:
        steps = "; ".join(f"island {i}: {', '.join(map(str, list_steps(f))) or 'none'}" for i, f in folders.items())
        raise CheckpointError(
            f"{run_dir} has no step that all islands saved",
            got=steps or "no islands",
            fix="name one island's checkpoint",
        )
    return points[-1]


def _check_islands(run_dir: Path, selection: Selection) -> None:
    headers = [checkpoint.manifest.header for checkpoint in selection.checkpoints]
    indices, count = [header.island for header in headers], headers[0].islands
    if indices != list(range(count)):
        raise CheckpointError(
            f"{run_dir} does not hold every island of the run at step {selection.step}",
            got=f"islands {', '.join(map(str, indices))}",
            allowed=f"islands 0 to {count - 1}",
            fix="bring the missing islands' folders here, or name one island's checkpoint",
        )
    if len({header.round for header in headers}) != 1:
        rounds = ", ".join(f"island {h.island}: {h.round}" for h in headers)
        raise CheckpointError(
            f"the islands in {run_dir} saved step {selection.step} in different rounds",
            got=f"outer rounds done by {rounds}",
            fix="name another step, or one island's checkpoint",
        )
    if len({(header.run_id, header.islands) for header in headers}) != 1:
        runs = ", ".join(f"island {h.island}: {h.run_id} of {h.islands}" for h in headers)
        raise CheckpointError(f"{run_dir} mixes islands of different runs", got=runs)


def _select_folder(folder: Path, *, step: int | None) -> Selection:
    checkpoint = open_checkpoint(folder)
    found = checkpoint.manifest.header.step
    if step is not None and step != found:
        raise CheckpointError(f"{folder} is of another step", got=found, allowed=step, fix="name the island's folder")
    return Selection((checkpoint,))


def _open(checkpoints: Path, step: int | None) -> Checkpoint:
    checkpoint = open_step(checkpoints, step=step)
    if checkpoint is None:
        raise CheckpointError(f"no checkpoint in {checkpoints}", fix="train first, or check the path")
    return checkpoint
