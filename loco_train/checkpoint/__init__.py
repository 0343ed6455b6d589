"""Whole checkpoints of an island: atomic saving, verified reading, retention, and logical parameters from shards."""

from loco_train.checkpoint.assemble import IslandParameters as IslandParameters
from loco_train.checkpoint.assemble import LogicalParameters as LogicalParameters
from loco_train.checkpoint.consensus import ConsensusParameters as ConsensusParameters
from loco_train.checkpoint.manifest import Header as Header
from loco_train.checkpoint.read import Checkpoint as Checkpoint
from loco_train.checkpoint.read import open_checkpoint as open_checkpoint
from loco_train.checkpoint.read import open_step as open_step
from loco_train.checkpoint.restore import RankState as RankState
from loco_train.checkpoint.restore import restore_checkpoint as restore_checkpoint
from loco_train.checkpoint.retention import clean_stale as clean_stale
from loco_train.checkpoint.retention import retain as retain
from loco_train.checkpoint.select import Selection as Selection
from loco_train.checkpoint.select import common_points as common_points
from loco_train.checkpoint.select import select_checkpoints as select_checkpoints
from loco_train.checkpoint.steps import committed_steps as committed_steps
from loco_train.checkpoint.steps import island_checkpoints as island_checkpoints
from loco_train.checkpoint.steps import point_to as point_to
from loco_train.checkpoint.write import RankContent as RankContent
from loco_train.checkpoint.write import save_checkpoint as save_checkpoint
