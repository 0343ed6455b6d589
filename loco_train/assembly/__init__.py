"""The only part that turns settings into objects: each function builds one thing, and can be replaced by itself."""

from loco_train.assembly.offline import build_offline_engine as build_offline_engine
from loco_train.assembly.start import build_events as build_events
from loco_train.assembly.start import choose_device as choose_device
from loco_train.assembly.start import join_default_group as join_default_group
from loco_train.assembly.trainer import build_trainer as build_trainer
