"""What every method would cost on a cluster that is not booked yet, and which one to take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from loco_train.config.method import MethodConfig
from loco_train.planning.cost_model import RoundCost, all_reduced, round_cost

# Perplexity of 1.5e9 parameters after 1e10 tokens on 8 islands with 100 inner steps.
QUALITY_SOURCE = "perplexity of 1.5B, 8 islands, H = 100: arXiv 2606.22768, Table 1"
QUALITY = {
    "data-parallel": 17.53,
    "diloco": 18.65,
    "factored-global-m1-local-m2": 18.80,
    "factored-global-m1s-local-m2": 19.11,
    "factored-global-m1-local-m2-subset": 19.15,
    "factored-local-m1m2": 19.37,
    "factored-global-m1": 19.42,
    "factored-global-m1s-local-m2-subset": 19.69,
    "factored-global-m1s": 20.91,
}
# The paper's advice for 1.5e9 parameters in fp32, H = 100 and steps of 4.72 s (from 2 Gbit/s on DiLoCo, and so on),
# as a ratio that holds for other sizes too: inner steps' seconds over those that one copy of the model takes.
ADVICE_SOURCE = "arXiv 2606.22768, section on the choice of a method"
ADVICE = (
    (19.6, "diloco", "the link is fast enough to wait for"),
    (
        4.9,
        "factored-global-m1-local-m2",
        "mix1 hides behind the inner steps, and a pair's exchange is short",
    ),
    (0.98, "factored-global-m1-local-m2-subset", "waiting is for the blocks that matter most"),
    (0.0, "factored-global-m1", "on so slow a link nothing may be waited for"),
)


@dataclass(frozen=True)
class Cluster:
    """step_seconds: of an inner step of an island. bits_per_second: of its link, each way at once. ranks: of an island.

    bytes_per_parameter: on the wire. tokens_per_step: of one island, None where no days are asked for.
    """

    parameters: float
    islands: int
    inner_steps: int
    step_seconds: float
    bits_per_second: float
    bytes_per_parameter: float = 4.0
    ranks: int = 1
    tokens_per_step: float | None = None


@dataclass(frozen=True)
class PlanRow:
    """A method on a cluster. utilization: 0 to 1. bytes_per_round: sent by one island. inner_steps_to_hide: how many it
    takes for what travels behind them to be hidden. outer_state_bytes: of one rank. days: to the tokens asked for.
    quality: see QUALITY; None where the paper has no figure."""

    method: str
    utilization: float
    round_seconds: float
    inner_steps: int
    bytes_per_round: float
    behind_seconds: float
    blocking_seconds: float
    inner_steps_to_hide: int
    outer_state_bytes: float
    days: float | None
    quality: float | None
    recommended: bool
    reason: str | None


def plan(
    methods: Mapping[str, MethodConfig], cluster: Cluster, *, subsets: Mapping[str, float], tokens: float | None = None
) -> list[PlanRow]:
    """A row for each method, best utilization first.

    methods: with the cluster's islands and inner steps. subsets: the share of the parameters that mix2 sends, of the
    methods that send a part.
    """
    advised, reason = advice(cluster)
    rows = []
    for name, method in methods.items():
        cost = _cost(method, cluster, subset=subsets.get(name, 1.0))
        steps = max(map(method.steps_of, range(cluster.islands))) if method.rule != "none" else cluster.inner_steps
        rows.append(
            PlanRow(
                method=name,
                utilization=cost.utilization,
                round_seconds=cost.seconds,
                inner_steps=steps,
                bytes_per_round=cost.bytes_sent,
                behind_seconds=cost.behind_seconds,
                blocking_seconds=cost.blocking_seconds,
                inner_steps_to_hide=math.ceil(cost.behind_seconds / cluster.step_seconds),
                outer_state_bytes=outer_state_bytes(method, cluster),
                days=_days(cost, cluster, steps=steps, tokens=tokens),
                quality=QUALITY.get(name),
                recommended=name == advised,
                reason=reason if name == advised else None,
            )
        )
    return sorted(rows, key=lambda row: -row.utilization)


def _cost(method: MethodConfig, cluster: Cluster, *, subset: float) -> RoundCost:
    if method.rule == "none":
        return all_reduced(
            cluster.inner_steps,
            parameters=cluster.parameters,
            islands=cluster.islands,
            step_seconds=cluster.step_seconds,
            bytes_per_second=cluster.bits_per_second / 8,
            bytes_per_parameter=cluster.bytes_per_parameter,
        )
    return round_cost(
        method,
        parameters=cluster.parameters,
        islands=cluster.islands,
        step_seconds=cluster.step_seconds,
        bytes_per_second=cluster.bits_per_second / 8,
        bytes_per_parameter=cluster.bytes_per_parameter,
        subset=subset,
    )


def _days(cost: RoundCost, cluster: Cluster, *, steps: int, tokens: float | None) -> float | None:
    if tokens is None or cluster.tokens_per_step is None:
        return None
    rounds = tokens / (cluster.islands * steps * cluster.tokens_per_step)
    return rounds * cost.seconds / 86400


def outer_state_bytes(method: MethodConfig, cluster: Cluster) -> float:
    """Of one rank: base and momentum, where mix1 arrives, what was sent, and every island's progress, in fp32, with the
    buffer that travels."""
    if method.rule == "none":
        return 0.0
    behind = method.mix1.peers != "nobody"
    buffers = 3 + behind + (behind and method.mix1_momentum) + (method.rule == "streaming")
    if method.aggregator.kind in ("ties", "tsv-m", "iso-cts"):
        buffers += cluster.islands
    return 4 * buffers * cluster.parameters / cluster.ranks


def advice(cluster: Cluster) -> tuple[str, str]:
    """(the method that the paper advises, why)."""
    ratio = (
        cluster.inner_steps
        * cluster.step_seconds
        / (cluster.parameters * cluster.bytes_per_parameter * 8 / cluster.bits_per_second)
    )
    method, why = next((method, why) for least, method, why in ADVICE if ratio >= least)
    return method, f"the inner steps take {ratio:.3g} times as long as one copy of the model: {why} ({ADVICE_SOURCE})"
