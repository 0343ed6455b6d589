"""The named methods, each a composition of parts."""

from __future__ import annotations

from loco_train.config.schema import MethodConfig, OuterOptimizerConfig
from loco_train.outer.method import OuterMethod
from loco_train.outer.parts import MeanOverAll, MomentumSGD, Unchanged


def diloco(outer: OuterOptimizerConfig) -> OuterMethod:
    """DiLoCo (arXiv 2311.08105, Algorithm 1): Nesterov on the mean of all islands' start - end."""
    return OuterMethod(
        mixing=MeanOverAll(),
        aggregator=Unchanged(),
        optimizer=MomentumSGD(kind=outer.kind, lr=outer.lr, momentum=outer.momentum),
    )


def outer_method(method: MethodConfig) -> OuterMethod | None:
    """The method that the settings name; None for data-parallel, where one island trains and nothing is exchanged."""
    return None if method.composition == "data-parallel" else diloco(method.outer)
