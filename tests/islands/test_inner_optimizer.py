import pytest
import torch
from torch.nn import Parameter

from loco_train.config.schema import InnerOptimizerConfig
from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.islands.inner_optimizer import InnerState, build_inner_optimizer, choose_implementation
from loco_train.islands.logical import LogicalParameter, mark
from loco_train.shards import Partition

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def choose(asked: str, *, device: torch.device = CPU, zero: int = 1, apex: bool = False, kind: str = "adamw") -> str:
    settings = InnerOptimizerConfig.model_validate({"kind": kind, "implementation": asked})
    return choose_implementation(settings, device=device, zero_stage=zero, has_apex=apex)


def parameters() -> list[Parameter]:
    matrix, gain = Parameter(torch.ones(2, 3)), Parameter(torch.ones(3))
    mark(matrix, LogicalParameter("matrix", (2, 3), Partition()))
    mark(gain, LogicalParameter("gain", (3,), Partition()))
    return [gain, matrix]


def test_auto_takes_the_fastest_that_is_there() -> None:
    assert choose("auto") == "torch"
    assert choose("auto", device=CUDA) == "deepspeed"
    assert choose("auto", device=CUDA, apex=True) == "apex"
    assert choose("auto", device=CUDA, apex=True, zero=3) == "deepspeed"
    assert choose("auto", device=CUDA, apex=True, kind="sgd") == "torch"


@pytest.mark.parametrize("asked", ["deepspeed", "apex"])
def test_fused_kernels_need_cuda(asked: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"implementation={asked} needs CUDA"):
        choose(asked)


def test_apex_that_is_missing_or_does_not_fit() -> None:
    with pytest.raises(EnvironmentProblem, match="not installed"):
        choose("apex", device=CUDA)
    with pytest.raises(ConfigError, match="ZeRO 3"):
        choose("apex", device=CUDA, apex=True, zero=3)


def test_sgd_has_one_implementation() -> None:
    with pytest.raises(ConfigError, match="no SGD"):
        choose("deepspeed", device=CUDA, kind="sgd")


def test_norm_gains_do_not_decay() -> None:
    settings = InnerOptimizerConfig(lr=0.1, weight_decay=0.5)
    gain, matrix = given = parameters()
    optimizer = build_inner_optimizer(settings, given, device=CPU, zero_stage=1)
    for parameter in given:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(gain.detach(), torch.ones(3))
    torch.testing.assert_close(matrix.detach(), torch.full((2, 3), 1 - 0.1 * 0.5))


def test_state_made_at_once_equals_state_made_at_the_first_step() -> None:
    gradients = [torch.randn(3), torch.randn(2, 3)]
    results = []
    for made_at_once in (False, True):
        given = parameters()
        optimizer = build_inner_optimizer(InnerOptimizerConfig(lr=0.1), given, device=CPU, zero_stage=1)
        state = InnerState(optimizer, list(given)) if made_at_once else None
        for parameter, gradient in zip(given, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        assert state is None or state.steps == 1
        results.append([p.detach() for p in given])
    for late, at_once in zip(*results, strict=True):
        assert torch.equal(late, at_once)
