import pytest
import torch

from loco_train.errors import ConfigError
from loco_train.testing import World, run_ranks
from loco_train.testing.tiny import tiny_run

CPU = torch.device("cpu")


def place(world: World, overrides: dict[str, int]) -> tuple[int, int, int]:
    from loco_train.islands import join_island

    layout = join_island(tiny_run(overrides), device=CPU)
    return layout.tensor_index, layout.data_index, layout.pipeline_index


def test_tensor_ranks_are_neighbours_then_data_then_pipeline() -> None:
    assert run_ranks(place, {"parallel.tensor": 2, "parallel.data": 2}, ranks=4) == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert run_ranks(place, {"parallel.data": 2, "parallel.pipeline": 2}, ranks=4) == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (0, 1, 1),
    ]


def refuse(world: World) -> str:
    from loco_train.islands import join_island

    with pytest.raises(ConfigError) as error:
        join_island(tiny_run({"parallel.tensor": 2}), device=CPU)
    return str(error.value)


def test_an_island_of_another_size_is_refused() -> None:
    (message,) = run_ranks(refuse, ranks=1)
    assert "got: 1 ranks" in message
    assert "allowed: 2: tensor 2 x pipeline 1 x data 1" in message
