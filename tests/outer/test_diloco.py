"""DiLoCo over simulated islands against an independent float64 oracle, and the identities it must keep."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from loco_train.config.schema import OuterOptimizerConfig
from loco_train.outer import OuterState, diloco
from loco_train.shards import FlatLayout, Partition, Shard


@dataclass
class LockStep:
    """Islands in one process: means are taken when the last island has handed in its tensor."""

    count: int

    def __post_init__(self):
        self.waiting: list[Tensor] = []
        self.device = torch.device("cpu")
        self.index = 0

    def mean(self, tensor: Tensor) -> "LockStep":
        self.waiting.append(tensor)
        if len(self.waiting) == self.count:
            average = torch.stack(self.waiting).mean(0)
            for waiting in self.waiting:
                waiting.copy_(average)
            self.waiting.clear()
        return self

    def wait(self) -> None:
        pass


def outer(lr: float, momentum: float) -> OuterOptimizerConfig:
    return OuterOptimizerConfig(kind="nesterov", lr=lr, momentum=momentum)


def run_round(method, states: list[OuterState], ends: list[Tensor]) -> None:
    network = LockStep(len(states))
    for state, end in zip(states, ends, strict=True):
        assert method.pseudo_gradient(state, end)
    for end in ends:
        method.exchange(end, network)
    for state, end in zip(states, ends, strict=True):
        method.apply(state, end)


def fresh(start: Tensor, islands: int) -> list[OuterState]:
    states = [OuterState.zeros(start.numel(), device=start.device, dtype=start.dtype) for _ in range(islands)]
    for state in states:
        state.base.copy_(start)
    return states


@pytest.mark.parametrize("islands", [1, 2, 8])
def test_follows_the_oracle_on_heterogeneous_quadratics(islands):
    """Island i descends 0.5 a_i |x - c_i|^2; the oracle is DiLoCo written out for scalars, in Python floats."""
    generator = torch.Generator().manual_seed(islands)
    curvature = torch.rand(islands, generator=generator, dtype=torch.float64) * 0.5 + 0.1
    centres = torch.randn(islands, generator=generator, dtype=torch.float64)
    states, method = fresh(torch.full((1,), 3.0, dtype=torch.float64), islands), diloco(outer(0.7, 0.9))
    x, v = 3.0, 0.0
    for _ in range(12):
        ends = [state.base.clone() for state in states]
        oracle_ends = [x] * islands
        for _ in range(5):
            for i in range(islands):
                ends[i] -= 0.2 * curvature[i] * (ends[i] - centres[i])
                oracle_ends[i] -= 0.2 * curvature[i].item() * (oracle_ends[i] - centres[i].item())
        run_round(method, states, ends)
        gradient = x - sum(oracle_ends) / islands
        v = 0.9 * v + gradient
        x = x - 0.7 * (gradient + 0.9 * v)
        # About 20 roundings a round of values near 1, amplified by at most 1 / (1 - 0.9): below 12 * 20 * 10 * 2**-53.
        assert states[0].base.item() == pytest.approx(x, abs=3e-13)
        assert all(torch.equal(state.base, states[0].base) for state in states)


@pytest.mark.parametrize(("dtype", "ulps"), [(torch.float32, 1), (torch.float64, 1)])
def test_one_island_with_lr_one_and_no_momentum_is_plain_training(dtype, ulps):
    start = torch.randn(10_000, dtype=dtype)
    end = start + 1e-2 * torch.randn(10_000, dtype=dtype)
    (state,) = fresh(start, 1)
    run_round(diloco(outer(1.0, 0.0)), [state], [end.clone()])
    # start - (start - end) differs from end by the rounding of the difference, at most half an ulp of the largest.
    bound = ulps * torch.finfo(dtype).eps * torch.maximum(start.abs(), end.abs())
    assert ((state.base - end).abs() <= bound).all()


@pytest.mark.parametrize("islands", [2, 8])
def test_one_inner_sgd_step_with_lr_one_and_no_momentum_is_data_parallel(islands):
    start = torch.randn(1000, dtype=torch.float64)
    gradients = torch.randn(islands, 1000, dtype=torch.float64)
    states = fresh(start, islands)
    run_round(diloco(outer(1.0, 0.0)), states, [start - 0.1 * g for g in gradients])
    data_parallel = start - 0.1 * gradients.mean(0)
    for state in states:
        torch.testing.assert_close(state.base, data_parallel, rtol=0, atol=1e-12)


def test_a_single_islands_progress_is_not_lost():
    (state,) = fresh(torch.zeros(4), 1)
    run_round(diloco(outer(0.7, 0.9)), [state], [torch.ones(4)])
    # First Nesterov step: lr (1 + momentum) times the progress.
    torch.testing.assert_close(state.base, torch.full((4,), 0.7 * 1.9))


def test_a_tied_weight_moves_once():
    shard = Shard("embedding.word_embeddings.weight", (2, 2), Partition(), 0, 4)
    layout = FlatLayout.of((shard,))
    states = [OuterState.zeros(layout.numel, device=torch.device("cpu")) for _ in range(2)]
    ends = [torch.zeros(layout.numel), torch.zeros(layout.numel)]
    ends[0][:4], ends[1][:4] = 2.0, 4.0
    run_round(diloco(outer(1.0, 0.0)), states, ends)
    for state in states:
        assert state.tensors(layout)["base/embedding.word_embeddings.weight"].tolist() == [3.0] * 4


def test_a_round_that_stops_before_apply_changes_no_state():
    states = fresh(torch.randn(64), 2)
    before = [(s.base.clone(), s.momentum.clone()) for s in states]
    method, network = diloco(outer(0.7, 0.9)), LockStep(2)
    for state in states:
        end = torch.randn(64)
        method.pseudo_gradient(state, end)
        method.exchange(end, network)
    for state, (base, momentum) in zip(states, before, strict=True):
        assert torch.equal(state.base, base)
        assert torch.equal(state.momentum, momentum)
