"""Typed, strict settings (no torch)."""

from loco_train.config.compare import run_digest as run_digest
from loco_train.config.load import ResolvedRun as ResolvedRun
from loco_train.config.load import load_run as load_run
from loco_train.config.save import save_resolved as save_resolved
from loco_train.config.schema import RunConfig as RunConfig
