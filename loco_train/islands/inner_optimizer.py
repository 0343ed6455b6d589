"""The optimizer of the inner steps: which implementation, parameter groups, and its state as views will see it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from loco_train.config.schema import InnerOptimizerConfig
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.islands.logical import logical_of

Implementation = Literal["torch", "deepspeed", "apex"]
MOMENTS = ("exp_avg", "exp_avg_sq")


def choose_implementation(
    settings: InnerOptimizerConfig, *, device: torch.device, zero_stage: int, has_apex: bool
) -> Implementation:
    """Which implementation `settings` means on this device.

    Raises:
        ConfigError: the combination does not exist.
        EnvironmentProblem: it needs CUDA or NVIDIA apex, which are not there.
    """
    asked = settings.implementation
    where = f"optimizer.implementation={asked}"
    if settings.kind == "sgd":
        if asked in ("deepspeed", "apex"):
            raise ConfigError(f"{where} has no SGD", allowed="torch or auto", fix="set optimizer.implementation=torch")
        return "torch"
    # apex counts its steps per parameter group, and ZeRO 3 calls it once for each part of a group: the bias
    # correction would run ahead.
    apex_fits = zero_stage < 3
    if asked == "auto":
        if device.type != "cuda":
            return "torch"
        return "apex" if has_apex and apex_fits else "deepspeed"
    if asked != "torch" and device.type != "cuda":
        raise EnvironmentProblem(
            f"{where} needs CUDA", got=f"device {device.type}", fix="set optimizer.implementation=auto"
        )
    if asked == "apex" and not apex_fits:
        raise ConfigError(f"{where} miscounts its steps under ZeRO 3", fix="set optimizer.implementation=deepspeed")
    if asked == "apex" and not has_apex:
        raise EnvironmentProblem(
            f"{where}, but NVIDIA apex is not installed (PyPI's package of that name is another one)",
            fix="build it from github.com/NVIDIA/apex, or set optimizer.implementation=auto",
        )
    return asked


def has_nvidia_apex() -> bool:
    """Whether NVIDIA's apex is there with its fused optimizers."""
    try:
        return hasattr(importlib.import_module("apex.optimizers"), "FusedAdam")
    except ImportError:
        return False


def build_inner_optimizer(
    settings: InnerOptimizerConfig, parameters: Iterable[Parameter], *, device: torch.device, zero_stage: int
) -> Optimizer:
    """The optimizer over marked parameters: matrices with weight decay, norm gains without.

    An object rather than a name in DeepSpeed's settings: on a CPU the name would select an optimizer that is compiled
    at the first start (two minutes measured).
    """
    implementation = choose_implementation(
        settings, device=device, zero_stage=zero_stage, has_apex=device.type == "cuda" and has_nvidia_apex()
    )
    groups = _groups(parameters, weight_decay=settings.weight_decay)
    if settings.kind == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr)
    common: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
    if implementation == "torch":
        return torch.optim.AdamW(groups, fused=True, **common)
    module = "apex.optimizers" if implementation == "apex" else "deepspeed.ops.adam"
    fused: Optimizer = importlib.import_module(module).FusedAdam(groups, adam_w_mode=True, **common)
    return fused


def _groups(parameters: Iterable[Parameter], *, weight_decay: float) -> list[dict[str, Any]]:
    all_parameters = list(parameters)
    matrices = [p for p in all_parameters if logical_of(p).is_matrix]
    vectors = [p for p in all_parameters if not logical_of(p).is_matrix]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


class InnerState:
    """Moments and step counters of the inner optimizer over the engine's flat fp32 masters.

    Every implementation makes its state at the first step; here it is made at once, with the same values, so that a
    checkpoint can be read into it before any step.
    """

    def __init__(self, optimizer: Optimizer, masters: list[Tensor]) -> None:
        self.optimizer = optimizer
        self.masters = masters
        self.has_moments = not isinstance(optimizer, torch.optim.SGD)
        if self.has_moments:
            for master in masters:
                optimizer.state[master].update({name: torch.zeros_like(master).detach() for name in MOMENTS})
            self.set_steps(0)

    def moments(self, master: Tensor) -> dict[str, Tensor]:
        """The moments of one flat master, live, of its shape."""
        return {name: self.optimizer.state[master][name] for name in MOMENTS} if self.has_moments else {}

    @property
    def steps(self) -> int:
        """Steps taken; the same for every master, as each step updates all of them."""
        counters = {int(self.optimizer.state[master].get("step", 0)) for master in self.masters}
        counters |= {int(group["step"]) for group in self.optimizer.param_groups if "step" in group}
        return max(counters, default=0)

    def set_steps(self, steps: int) -> None:
        """Set the counter where the implementation keeps it: a tensor (torch), a number (DeepSpeed), a group (apex)."""
        if not self.has_moments:
            return
        if isinstance(self.optimizer, torch.optim.AdamW):
            for master in self.masters:
                self.optimizer.state[master]["step"] = torch.tensor(float(steps), device=master.device)
            return
        for master in self.masters:
            self.optimizer.state[master]["step"] = steps
        for group in self.optimizer.param_groups:
            group["step"] = steps
