"""What the options of loco simulate say, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from loco_train.config.load import load_run
from loco_train.errors import ConfigError

if TYPE_CHECKING:
    from loco_train.config.schema import RunConfig

_MOST_STEPS = 1_000_000
_MOST_DUMPED_BYTES = 4 * 2**30


def method_config(method: str, *, islands: int, steps: Sequence[int], settings: Sequence[str]) -> RunConfig:
    """The method's settings, composed and checked as for a run of the simulated model. A data-parallel run is one
    island to them, whatever `islands` is."""
    from loco_train.simulation.stacked_llama import Shape

    for text in settings:
        if text.partition("=")[0] == "inner_steps":
            raise ConfigError("inner steps have an option of their own", got=f"--set {text}", fix="use --inner-steps")
    model = [f"model.layers={Shape().layers}", "model.tied_embeddings=false"]
    own = load_run("quickstart", [*model, f"method={method}", "islands.count=1"]).config.method
    count = 1 if own.rule == "none" else islands
    if own.rule == "none" and len(set(steps)) > 1:
        raise ConfigError("data-parallel islands step together", got=f"inner steps {steps}", fix="give one number")
    each = steps[0] if len(set(steps)) == 1 else list(steps)
    overrides = [*model, f"method={method}", f"islands.count={count}", f"method.inner_steps={each}"]
    config = load_run("quickstart", [*overrides, *(f"method.{text}" for text in settings)]).config
    if config.method.mix2.is_measured:
        raise ConfigError(
            "the simulator does not measure blocks", got="mix2.blocks: measured", fix="name blocks, or use `loco train`"
        )
    return config


def parse_steps(text: str, islands: int) -> list[int]:
    """Inner steps of each island."""
    parts = [part.strip() for part in text.split(",")]
    good = all(part.isdecimal() and 0 < int(part) <= _MOST_STEPS for part in parts)
    if not good or len(parts) not in (1, islands):
        raise ConfigError(
            "--inner-steps is no number of steps",
            got=repr(text),
            allowed=f"one positive number up to {_MOST_STEPS:,}, or {islands}, one for each island: 4,4,2,...",
        )
    return [int(part) for part in parts] * (islands if len(parts) == 1 else 1)


def parse_shape(text: str, *, islands: int, rounds: int) -> tuple[int, int]:
    """Rows and columns of the quadratic's matrix."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", text)
    if match is None:
        raise ConfigError("--shape is no shape of a matrix", got=repr(text), allowed="ROWSxCOLUMNS, as 16x8")
    rows, columns = int(match[1]), int(match[2])
    # start, end, base and pseudo-gradient of every round, in float64.
    needed = 8 * islands * rows * columns * (4 * rounds + 3)
    if needed > _MOST_DUMPED_BYTES:
        raise ConfigError(
            "all rounds of all islands do not fit into memory",
            got=f"{rows}x{columns} over {islands} islands and {rounds} rounds: {needed / 1e9:.1f} GB",
            allowed=f"up to {_MOST_DUMPED_BYTES / 1e9:.1f} GB",
            fix="take a smaller --shape, or fewer --rounds",
        )
    return rows, columns


def parse_lr(option: str, given: float | str) -> float:
    """A learning rate of the inner steps."""
    try:
        lr = float(given)
    except ValueError:
        raise ConfigError(f"{option} takes numbers", got=repr(given)) from None
    if not 0 < lr < float("inf"):
        raise ConfigError(f"{option} must be positive", got=given)
    return lr


def parse_seeds(text: str) -> tuple[int, ...]:
    """Each once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < 2**63 for part in parts) or len(set(map(int, parts))) < len(parts):
        raise ConfigError("--seeds are no seeds", got=repr(text), allowed="different whole numbers: 0,1,2")
    return tuple(map(int, parts))


def parse_sweeps(given: Sequence[str], *, settings: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Values by setting, of `outer.lr=0.4,0.7`; settings: what is set for all runs."""
    sweeps: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not all(values.split(",")):
            raise ConfigError("--sweep names no values", got=repr(text), allowed="outer.lr=0.4,0.7,1.0")
        if name in sweeps or name in {each.partition("=")[0] for each in settings}:
            raise ConfigError(f"{name} is given twice", got=f"--sweep {text}", fix="give it once, by --set or --sweep")
        if name == "inner_steps":
            raise ConfigError("--sweep does not take inner steps", fix="run once for each --inner-steps")
        sweeps[name] = tuple(values.split(","))
    for value in sweeps.get("inner_lr", ()):
        parse_lr("--sweep inner_lr", value)
    return sweeps


def parse_failures(given: Sequence[str], *, islands: int, rounds: int) -> Callable[[int], Collection[frozenset[int]]]:
    """Pairs that cannot exchange, by round."""
    failed: dict[int, set[frozenset[int]]] = {}
    for text in given:
        match = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
        number, one, two = map(int, match.groups()) if match else (rounds, 0, 0)
        if not (number < rounds and one != two and max(one, two) < islands):
            raise ConfigError(
                "--fail names no exchange",
                got=repr(text),
                allowed=f"ROUND:I-J with a round from 0 to {rounds - 1} and two islands from 0 to {islands - 1}",
            )
        failed.setdefault(number, set()).add(frozenset((one, two)))
    return lambda number: failed.get(number, ())
