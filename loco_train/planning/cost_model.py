"""How long a round takes, and how much of it is compute: bandwidth alone, no latency.

    utilization = H t / (max(H t, mix1) + mix2)

reproduces the utilisation of every method in Table 1 of Factored Gossip DiLoCo (arXiv 2606.22768) to a point; with a
time for each island, the straggler experiment of GASLoC (arXiv 2606.11081).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loco_train.config.method import MethodConfig, MixConfig


@dataclass(frozen=True)
class RoundCost:
    """Of one island, in seconds. bytes_sent: by it. behind: what travels behind the inner steps."""

    compute_seconds: float
    behind_seconds: float
    blocking_seconds: float
    bytes_sent: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.behind_seconds) + self.blocking_seconds

    @property
    def utilization(self) -> float:
        """0 to 1."""
        return self.compute_seconds / self.seconds


def round_cost(
    method: MethodConfig,
    *,
    parameters: float,
    islands: int,
    step_seconds: float,
    bytes_per_second: float,
    bytes_per_parameter: float = 4,
    subset: float = 1,
) -> RoundCost:
    """A round where all islands are equally fast.

    bytes_per_second: of an island's link, each way at once. bytes_per_parameter: on the wire. subset: the share of the
    parameters that mix2 sends.
    """
    whole = parameters * bytes_per_parameter
    # Momentum travels with the start; one fragment of a streamed model does in a round.
    behind = models_sent(method.mix1, islands) * (2 if method.mix1_momentum else 1) * whole
    if method.rule == "streaming":
        behind /= method.streaming.fragments
    blocking = models_sent(method.mix2, islands) * subset * whole
    return RoundCost(
        compute_seconds=max(map(method.steps_of, range(islands))) * step_seconds,
        behind_seconds=behind / bytes_per_second,
        blocking_seconds=blocking / bytes_per_second,
        bytes_sent=behind + blocking,
    )


def all_reduced(
    inner_steps: int,
    *,
    parameters: float,
    islands: int,
    step_seconds: float,
    bytes_per_second: float,
    bytes_per_parameter: float = 4,
) -> RoundCost:
    """As many steps of plain data parallelism, each with an all-reduce of the gradients that nothing hides."""
    sent = inner_steps * _ring(islands) * parameters * bytes_per_parameter
    return RoundCost(inner_steps * step_seconds, 0.0, sent / bytes_per_second, sent)


def _ring(islands: int) -> float:
    return 2 * (islands - 1) / islands


def models_sent(mix: MixConfig, islands: int) -> float:
    """How many times an island sends what is mixed: a ring all-reduce, or a copy for each peer."""
    if islands == 1:
        return 0
    match mix.peers:
        case "nobody":
            return 0
        case "all":
            return _ring(islands)
        case "random-pair":
            return 1
        case "ring" | "random-cycle":
            return min(2, islands - 1)
        case "rotating-exponential":
            return 1 if islands & (islands - 1) == 0 else 2
        case "exponential":
            distances = [2**k for k in range((islands - 1).bit_length())]
            return len({sign * distance % islands for distance in distances for sign in (1, -1)} - {0})
        case "graph":
            return islands - 1  # at most


def gossip_round_seconds(
    inner_steps: Sequence[int], *, step_seconds: Sequence[float], exchange_seconds: Sequence[float], peers: int
) -> float:
    """GASLoC, section on heterogeneous islands: the slowest of k exchanges and its own inner steps.

    exchange_seconds: by island, of one exchange with one peer over its own link, both ways at once.
    """
    each = zip(inner_steps, step_seconds, exchange_seconds, strict=True)
    return max(peers * exchange + steps * step for steps, step, exchange in each)


def all_reduce_round_seconds(
    inner_steps: Sequence[int], *, step_seconds: Sequence[float], exchange_seconds: Sequence[float]
) -> float:
    """The slowest link twice, after the slowest island's inner steps."""
    compute = max(steps * step for steps, step in zip(inner_steps, step_seconds, strict=True))
    return 2 * max(exchange_seconds) + compute
