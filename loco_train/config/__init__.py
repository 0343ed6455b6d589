"""Typed, strict settings (no torch)."""

from loco_train.config.schema import RunConfig as RunConfig
