"""Which rank of its island this process is: told by torchrun, by srun, or alone.

Step-level SLURM variables are read before job-level ones: a step smaller than its allocation would otherwise wait
for ranks that do not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loco_train.errors import ConfigError, EnvironmentProblem


@dataclass(frozen=True)
class RankEnvironment:
    """Rank inside the island, ranks of the island, rank on this machine, and where the island's ranks meet.

    address: host:port of the island's own store; None for a single process.
    """

    rank: int
    ranks: int
    local_rank: int
    address: str | None


def rank_environment(variables: Mapping[str, str], *, expected_ranks: int) -> RankEnvironment:
    """Read the launcher's variables; raises ConfigError when their number of ranks is not the island's."""
    found = _from_torchrun(variables) or _from_srun(variables) or RankEnvironment(0, 1, 0, None)
    if found.ranks != expected_ranks:
        raise ConfigError(
            "the island has another number of ranks than the settings ask for",
            got=f"{found.ranks} processes",
            allowed=f"parallel.tensor * parallel.pipeline * parallel.data = {expected_ranks}",
            fix=f"torchrun --nproc-per-node={expected_ranks} -m -- loco_train.cli.main train ..., or change parallel.*",
        )
    return found


def _from_torchrun(variables: Mapping[str, str]) -> RankEnvironment | None:
    if "RANK" not in variables:
        return None
    return RankEnvironment(
        rank=_integer(variables, "RANK"),
        ranks=_integer(variables, "WORLD_SIZE"),
        local_rank=_integer(variables, "LOCAL_RANK"),
        address=_address(variables),
    )


def _from_srun(variables: Mapping[str, str]) -> RankEnvironment | None:
    if "SLURM_STEP_ID" not in variables or "SLURM_PROCID" not in variables:
        return None
    ranks = _integer(variables, "SLURM_STEP_NUM_TASKS")
    return RankEnvironment(
        rank=_integer(variables, "SLURM_PROCID"),
        ranks=ranks,
        local_rank=_integer(variables, "SLURM_LOCALID"),
        address=_address(variables) if ranks > 1 else None,
    )


def _address(variables: Mapping[str, str]) -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not variables.get(name)]
    if missing:
        raise EnvironmentProblem(
            f"{' and '.join(missing)} is not set, so the ranks of this island cannot find each other",
            fix="set MASTER_ADDR to the island's first host and MASTER_PORT to a free port there, or use torchrun",
        )
    return f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"


def _integer(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "")
    if not text.isdecimal():
        raise EnvironmentProblem(
            f"the launcher's variable {name} is not a number",
            got=repr(text),
            fix="start ranks by torchrun or srun, or unset RANK and SLURM_* to run one process",
        )
    return int(text)
