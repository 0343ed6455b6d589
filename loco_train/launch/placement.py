"""What each island's processes find in their environment: cores, GPUs, and nothing of an outer launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from loco_train.errors import EnvironmentProblem

# Left by a launcher around this one (torchrun, srun); a rank that believed them would wait for ranks of another job.
_INHERITED_NAMES = {"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_INHERITED_PREFIXES = ("LOCAL_", "ROLE_", "TORCHELASTIC_", "SLURM_")


def island_variables(variables: Mapping[str, str], *, all_ranks: int, devices: str | None) -> dict[str, str]:
    """The environment of one island's processes.

    Args:
        variables: of the launcher.
        all_ranks: of all islands on this machine; they share its cores.
        devices: CUDA_VISIBLE_DEVICES; None leaves it as it is.
    """
    kept = {
        name: value
        for name, value in variables.items()
        if name not in _INHERITED_NAMES and not name.startswith(_INHERITED_PREFIXES)
    }
    kept.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // all_ranks)))
    kept.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # The last lines before a kill are what tells why; they must not be in a buffer then.
    kept["PYTHONUNBUFFERED"] = "1"
    if devices is not None:
        kept["CUDA_VISIBLE_DEVICES"] = devices
    return kept


def visible_devices(variables: Mapping[str, str]) -> list[str]:
    """The GPUs that CUDA would find, as CUDA_VISIBLE_DEVICES names them; found without torch."""
    found = _listed_devices()
    limit = variables.get("CUDA_VISIBLE_DEVICES")
    if limit is None or not found:
        return found
    named = [name.strip() for name in limit.split(",")]
    # CUDA itself stops at the first name that is no device.
    valid = [index for index, name in enumerate(named) if name in ("", "-1")]
    return named[: valid[0]] if valid else named


def split_devices(devices: Sequence[str], *, device: str, islands: int, ranks: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each island: one GPU a rank, no GPU twice. None: leave it as it is.

    Args:
        devices: from `visible_devices`.
        device: the setting `device`: auto, cpu or cuda.
        islands: on this machine.
        ranks: of one island.

    Raises:
        EnvironmentProblem: too few GPUs where GPUs would be used.
    """
    if device == "cpu" or (device == "auto" and not devices):
        return [None] * islands
    if len(devices) < islands * ranks:
        raise EnvironmentProblem(
            f"{islands} islands of {ranks} ranks need {islands * ranks} GPUs on this machine",
            got=f"{len(devices)} GPUs",
            allowed="one for each rank of each island",
            fix="use fewer islands (--islands) or ranks (parallel.*), or set device=cpu",
        )
    return [",".join(devices[island * ranks : (island + 1) * ranks]) for island in range(islands)]


def _listed_devices() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return []
    return [str(index) for index, _ in enumerate(_device_lines(listed.stdout))]


def _device_lines(listing: str) -> list[str]:
    return [line for line in listing.splitlines() if line.startswith("GPU ")]
