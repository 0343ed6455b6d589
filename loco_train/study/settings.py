"""Settings of a study: the methods that it compares, each tuned alike, and the points of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from loco_train.assets import shared_folder
from loco_train.config.settings import Settings, require
from loco_train.config.yaml_file import read_yaml
from loco_train.errors import ConfigError

Axis = Literal["inner_lr", "outer_lr", "momentum"]
AXES: tuple[Axis, ...] = ("outer_lr", "inner_lr", "momentum")


class ShapeConfig(Settings):
    """Sizes of the model, as in `loco_train.simulation.stacked_llama.Shape`."""

    layers: PositiveInt = 2
    hidden: PositiveInt = 64
    heads: PositiveInt = 4
    ffn: PositiveInt = 176
    sequence: PositiveInt = 32


class Variant(Settings):
    """What is compared: a named method with changes."""

    method: str
    settings: tuple[str, ...] = Field((), description="Changes to the method, as in mix2.peers=ring.")
    tuned: tuple[Axis, ...] = AXES
    label: str | None = Field(None, description="In tables and pictures; None: the variant's own name.")


class Problem(Settings):
    """What the islands of a part train. batch: sequences of all of them in one step; steps: inner ones after the
    shared start, whatever the number of inner steps in a round."""

    batch: PositiveInt = 32
    steps: PositiveInt = 720
    shape: ShapeConfig = ShapeConfig()
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)


class Point(Settings):
    """One row of a part's table: a variant on so many islands with so many inner steps.

    tuned_islands, tuned_variant, tuned_inner_steps: whose tuned values it takes; None: its own.
    """

    variant: str
    islands: PositiveInt = 8
    inner_steps: PositiveInt = 30
    tuned_islands: PositiveInt | None = None
    tuned_variant: str | None = None
    tuned_inner_steps: PositiveInt | None = None


class Order(Settings):
    """A claim of a paper: each variant's value at most the next one's. of: a field of a row."""

    claim: str
    of: Literal["loss", "l2_before", "js_before", "l2_max", "js_max", "l2", "js"] = "loss"
    variants: Annotated[tuple[str, ...], Field(min_length=2)]
    islands: PositiveInt = 8
    inner_steps: PositiveInt = 30


class Growth(Settings):
    """A claim of a paper: `over` minus `under`, in nats of loss, grows with the number of islands."""

    claim: str
    over: str
    under: str


class Part(Settings):
    """One question: a problem, points, and what the papers say of them."""

    title: str
    tuned: bool = Field(True, description="false: its points take the values of other parts' points.")
    problem: Problem = Problem()
    baseline: str = Field(description="The variant that the others' losses are compared with, seed by seed.")
    points: Annotated[tuple[Point, ...], Field(min_length=1)]
    orders: tuple[Order, ...] = ()
    growth: tuple[Growth, ...] = ()


class Tuning(Settings):
    """A search from the method's defaults along one axis at a time, so many runs for each tuned point."""

    seed: int
    runs: PositiveInt = 9
    inner_lr: PositiveFloat = 4e-3
    inner_factor: Annotated[float, Field(gt=1)] = 2.0
    outer_factor: Annotated[float, Field(gt=1)] = 1.4
    momentum: tuple[float, ...] = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class StudyConfig(Settings):
    """A study. warm_up_*: of the start that all points with the same seed share; evaluations: of a run."""

    name: str
    warm_up_steps: PositiveInt = 300
    warm_up_lr: PositiveFloat = 4e-3
    evaluations: PositiveInt = 6
    tuning: Tuning
    variants: dict[str, Variant]
    parts: dict[str, Part]

    @model_validator(mode="after")
    def _check(self) -> StudyConfig:
        for name, part in self.parts.items():
            used = {p.variant for p in part.points} | {p.tuned_variant for p in part.points if p.tuned_variant}
            ordered = {variant for order in part.orders for variant in order.variants}
            compared = {side for growth in part.growth for side in (growth.over, growth.under)}
            for variant in sorted(used | ordered | compared | {part.baseline}):
                require(variant in self.variants, f"parts.{name} names {variant!r}, which is none of the variants")
            for point in part.points:
                _check_point(name, point, part.problem)
            require(self.tuning.seed not in part.problem.seeds, f"parts.{name}: tuning.seed is one of its seeds")
        return self


def _check_point(name: str, point: Point, problem: Problem) -> None:
    what = f"parts.{name}: {point.variant} on {point.islands} islands"
    require(problem.batch % point.islands == 0, f"{what} cannot share {problem.batch} sequences equally")
    require(
        problem.steps % point.inner_steps == 0,
        f"{what}: {problem.steps} steps are no whole number of rounds of {point.inner_steps}",
    )


def load_study(study: str | Path) -> StudyConfig:
    """A study from its YAML file, or from the name of one under configs/studies.

    Raises:
        ConfigError: naming every setting that is wrong.
    """
    path = Path(study)
    if path.suffix not in (".yaml", ".yml"):
        path = shared_folder("configs") / "studies" / f"{study}.yaml"
    sourced = read_yaml(path, shown_as=path.name)
    try:
        return StudyConfig.model_validate(sourced.values)
    except ValidationError as error:
        problems = []
        for found in error.errors(include_url=False):
            dotted = ".".join(map(str, found["loc"]))
            place = f"{dotted} ({sourced.origins[dotted]})" if dotted in sourced.origins else dotted
            problems.append(f"{place}: {found['msg'].removeprefix('Value error, ')}")
        raise ConfigError(f"{path.name} is no study", got="; ".join(problems)) from None
