"""Who am I: torchrun's variables, srun's, none; and what is said when they do not fit."""

import pytest

from loco_train.errors import ConfigError, EnvironmentProblem
from loco_train.launch.environment import RankEnvironment, rank_environment

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "4"}
STORE = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}


def test_torchrun():
    assert rank_environment(TORCHRUN, expected_ranks=4) == RankEnvironment(3, 4, 1, "n1:29500")


def test_srun_reads_the_step_and_not_the_allocation():
    variables = {**SRUN, **STORE, "SLURM_NTASKS": "16", "SLURM_JOB_NUM_NODES": "8"}
    assert rank_environment(variables, expected_ranks=4) == RankEnvironment(2, 4, 0, "n1:29500")


def test_torchrun_inside_srun_is_torchrun():
    assert rank_environment({**SRUN, **TORCHRUN}, expected_ranks=4).rank == 3


def test_alone():
    assert rank_environment({"SLURM_JOB_ID": "7"}, expected_ranks=1) == RankEnvironment(0, 1, 0, None)


def test_another_number_of_ranks_than_the_settings_is_refused():
    with pytest.raises(ConfigError, match=r"got: 4 processes\n.*= 8\n.*--nproc-per-node=8"):
        rank_environment(TORCHRUN, expected_ranks=8)


def test_srun_without_an_address_says_which_variables():
    with pytest.raises(EnvironmentProblem, match="MASTER_ADDR and MASTER_PORT is not set"):
        rank_environment(SRUN, expected_ranks=4)


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(EnvironmentProblem, match="WORLD_SIZE is not a number"):
        rank_environment({**TORCHRUN, "WORLD_SIZE": "many"}, expected_ranks=4)
