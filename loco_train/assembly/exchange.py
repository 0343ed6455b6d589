"""The outer step of the run's method, and its counterparts."""

from __future__ import annotations

import torch

from loco_train.islands import Layout, ParameterViews
from loco_train.islands.matrices import IslandMatrices
from loco_train.outer import outer_method
from loco_train.telemetry.meters import PhaseClock
from loco_train.training.meeting import Meeting
from loco_train.training.outer_step import ExchangingOuterStep, NoOuterStep, OuterStep
from loco_train.transport.ballot import Ballot
from loco_train.transport.counterparts import Counterparts, Position


def build_outer_step(
    meeting: Meeting, *, layout: Layout, views: ParameterViews, device: torch.device, clock: PhaseClock
) -> OuterStep:
    """The outer step of the run's method; connects this rank to its counterparts."""
    config = meeting.config
    if config.method.rule == "none":
        return NoOuterStep()
    method = outer_method(
        config.method,
        islands=config.islands.count,
        layout=views.owned,
        matrices=IslandMatrices(config.model, views, embeddings=config.method.aggregator.embeddings),
        layers=config.model.layers,
        tied=config.model.tied_embeddings,
    )
    place = device if config.method.outer_state == "device" else torch.device("cpu")
    blocking = behind = connect_counterparts(meeting, "blocking", layout=layout, device=device)
    if method.sends_behind:
        # Operations of one group are done in their order: what is under way in the background has a group of its own.
        behind = connect_counterparts(meeting, "behind", layout=layout, device=device)
    return ExchangingOuterStep(
        method=method,
        state=method.new_state(views.owned.numel, device=place),
        scratch=torch.zeros(views.owned.numel, device=place),
        views=views,
        blocking=blocking,
        behind=behind,
        ballot=Ballot(
            meeting.store,
            prefix=meeting.prefix,
            index=config.islands.index,
            count=config.islands.count,
            timeout_seconds=config.network.exchange_timeout,
            hopeless=blocking.lost,
        ),
        clock=clock,
        seed=config.seed,
    )


def connect_counterparts(meeting: Meeting, purpose: str, *, layout: Layout, device: torch.device) -> Counterparts:
    """A communicator between this rank and the ranks at its position in the other islands."""
    islands, network = meeting.config.islands, meeting.config.network
    return Counterparts(
        meeting.store,
        prefix=f"{meeting.prefix}/{purpose}",
        position=Position(layout.pipeline_index, layout.tensor_index, layout.data_index),
        index=islands.index,
        count=islands.count,
        device=device,
        backend=network.backend,
        timeout_seconds=network.exchange_timeout,
        bucket_bytes=int(network.bucket_bytes),
        interface=network.interface,
    )
