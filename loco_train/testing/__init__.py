"""Tools for tests that need real ranks, shipped with the package."""

from loco_train.testing.ranks import RankFailed as RankFailed
from loco_train.testing.ranks import World as World
from loco_train.testing.ranks import run_islands as run_islands
from loco_train.testing.ranks import run_ranks as run_ranks
