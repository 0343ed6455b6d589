"""Settings of the outer methods: a method is a rule, two mixings, an aggregator and an outer optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loco_train.config.settings import Settings, require
from loco_train.units import Bytes

PeerKind = Literal[
    "nobody", "all", "ring", "exponential", "rotating-exponential", "random-pair", "random-cycle", "graph"
]
_WEIGHTED = ("ring", "exponential", "rotating-exponential", "random-cycle")


_DEFAULTS = (
    "by method: lr 0.7, momentum 0.9 (DiLoCo, arXiv 2311.08105); with rule ends 0.8, 0.7 (GASLoC, arXiv 2606.11081); "
    "with rule streaming 0.4, 0.9 (arXiv 2501.18512); "
    "with aggregator iso by the number of islands (IsoLoCo, arXiv 2607.03011)"
)
# IsoLoCo, tuned values of the 178M model: up to so many islands this lr and momentum.
_ISO_DEFAULTS = ((1, 1.6, 0.7), (2, 1.7, 0.8), (16, 1.8, 0.8), (32, 4.6, 0.9), (64, 5.6, 0.9))
_ISO_BEYOND = (9.8, 0.9)


AggregatorKind = Literal["mean", "iso", "iso-fast", "clip-high", "clip-low", "dare", "ties", "tsv-m", "iso-cts"]


class OuterOptimizerConfig(Settings):
    """The optimizer of the outer step, applied to the pseudo-gradient (PyTorch SGD semantics)."""

    kind: Literal["nesterov", "heavy-ball", "sgd"] = "nesterov"
    lr: PositiveFloat | None = Field(None, description=f"None: {_DEFAULTS}.")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, description=f"None: {_DEFAULTS}.")

    @model_validator(mode="after")
    def _check(self) -> OuterOptimizerConfig:
        require(self.kind != "sgd" or not self.momentum, "kind sgd has no momentum: set momentum: 0")
        return self


class MixConfig(Settings):
    """Whom an island mixes with, and which blocks of the model."""

    peers: PeerKind = "nobody"
    self_weight: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Of the island's own tensor, with peers that are neighbours; None: as much as each of them."
    )
    graph: str | None = Field(None, description="peers graph: a YAML file with `weights`, one row for each island.")
    links: Annotated[tuple[tuple[int, int], ...], Field(min_length=1)] | None = Field(
        None, description="peers random-pair: the pairs of islands that may meet; None: all."
    )
    blocks: Literal["measured"] | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None,
        description="Only these, as embedding, head, layers.0-1 or layers.2.mlp; measured: those whose disagreement "
        "changes most, for the bytes they cost, of what the model says; None: the whole model.",
    )
    budget: Bytes | None = Field(
        None, description="blocks measured: what may be sent of the model to one peer, in fp32."
    )
    measure_every_rounds: PositiveInt | None = Field(
        None, description="blocks measured: how often anew; None: in the first round only."
    )

    @model_validator(mode="after")
    def _check(self) -> MixConfig:
        require(
            self.self_weight is None or self.peers in _WEIGHTED,
            f"self_weight has no meaning for peers {self.peers}: it is for {', '.join(_WEIGHTED)}",
        )
        require(
            (self.graph is not None) == (self.peers == "graph"),
            f"peers: graph goes with a file, as `graph: FILE`; got peers: {self.peers}, "
            f"{'no graph' if self.graph is None else f'graph: {self.graph}'}",
        )
        require(self.links is None or self.peers == "random-pair", "links limit peers random-pair only")
        require(self.blocks is None or self.peers != "nobody", "blocks are set, but peers is nobody: nothing is mixed")
        require(
            self.is_measured == (self.budget is not None),
            "blocks: measured goes with a budget, as `budget: 200MB`, of what may be sent to one peer",
        )
        require(
            self.is_measured or self.measure_every_rounds is None, "measure_every_rounds goes with blocks: measured"
        )
        return self

    @property
    def is_measured(self) -> bool:
        """Whether the blocks are chosen by measurement."""
        return self.blocks == "measured"


class AggregatorConfig(Settings):
    """What is made of the mixed pseudo-gradient."""

    kind: AggregatorKind = Field(
        "mean",
        description="mean: as it is. iso: every matrix gets a flat spectrum by SVD, iso-fast: by Newton-Schulz "
        "(arXiv 2607.03011). clip-high, clip-low: only the singular values above, or below, their mean are set to it. "
        "dare: islands send a random part. ties, tsv-m, iso-cts: merge the matrices of all islands, for comparison.",
    )
    scale: Literal["trace", "rms"] = Field(
        "trace", description="iso-fast: trace: the mean of the singular values, rms: their root mean square (paper)."
    )
    embeddings: bool = Field(True, description="Whether embedding and head are treated as matrices too (paper: yes).")
    trimmed: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="ties: the share of each matrix's smallest elements that an island does not count with."
    )
    dropped: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="dare: the probability that an element is not sent."
    )
    common: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="iso-cts: the share of a matrix's directions that the islands' mean gets; else their own."
    )

    @property
    def needs_each(self) -> bool:
        """Whether it takes every island's progress by itself."""
        return self.kind in ("ties", "tsv-m", "iso-cts")


class StreamingConfig(Settings):
    """Of rule streaming."""

    fragments: PositiveInt = Field(
        3, description="P: parts of the model, layer l in part l mod P; each is synchronised every P rounds."
    )
    kept: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="What an island keeps of its own parameters when a fragment lands (alpha)."
    )


class MethodConfig(Settings):
    """An outer method. With start and end of a round, mix1 of the start and mix2 of what travels:

    rule progress: base mix1(start), pseudo-gradient mix2(start - end). ends: base start, start - mix2(end).
    starts: base end, start - mix1(start). streaming: the progress of one fragment of the model is averaged behind the
    next round (mix1), so that H is inner_steps times streaming.fragments. none: one island, no outer step.
    """

    rule: Literal["none", "progress", "ends", "starts", "streaming"]
    inner_steps: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        30, description="H: inner steps in a round; a list gives each island its own."
    )
    mix1: MixConfig = Field(MixConfig(), description="Of the starts; travels behind the next inner steps.")
    mix1_momentum: bool = Field(False, description="mix1 averages the outer momentum too (S variants; worse).")
    mix2: MixConfig = Field(MixConfig(), description="At the outer step; the islands wait for it.")
    aggregator: AggregatorConfig = AggregatorConfig()
    outer: OuterOptimizerConfig = OuterOptimizerConfig()
    weighting: Literal["islands", "tokens"] = Field(
        "islands", description="What a mean of progress counts: every island alike, or by the tokens it has trained on."
    )
    streaming: StreamingConfig = StreamingConfig()
    outer_state: Literal["device", "host"] = Field(
        "device", description="Where base and momentum (8 bytes a parameter) lie; host is pinned where there is CUDA."
    )

    @model_validator(mode="after")
    def _check(self) -> MethodConfig:
        one, two = self.mix1.peers != "nobody", self.mix2.peers != "nobody"
        uses = {"none": (False, False), "ends": (False, True), "starts": (True, False), "streaming": (True, False)}
        if self.rule in uses:
            require(
                (one, two) == uses[self.rule],
                f"rule {self.rule} takes {_parts(*uses[self.rule])}, got {_parts(one, two)}",
            )
        require(self.rule != "progress" or one or two, "rule progress needs mix1 or mix2: the islands would never meet")
        require(one or not self.mix1_momentum, "mix1_momentum needs a mix1")
        require(self.mix1.blocks is None, "mix1 takes no blocks: a start that is mixed in part is no model")
        require(
            self.mix2.blocks is None or one,
            "mix2.blocks needs a mix1: without it the blocks that are left out would never come together again",
        )
        require(
            self.rule != "streaming" or self.mix1.peers == "all",
            f"rule streaming takes mix1.peers all, got {self.mix1.peers}: the islands' bases must stay equal",
        )
        require(
            self.weighting == "islands" or self.rule == "progress",
            f"weighting tokens has no meaning for rule {self.rule}: only where progress travels can it be weighted "
            "and the mean of the islands kept",
        )
        self._check_aggregator()
        return self

    def _check_aggregator(self) -> None:
        kind, plain = self.aggregator.kind, self.aggregator.kind == "mean"
        require(
            plain or self.rule != "streaming", f"aggregator {kind} works on whole rounds: rule streaming takes the mean"
        )
        require(
            plain or self.rule in ("progress", "none"),
            f"aggregator {kind} is unsound with rule {self.rule}: its pseudo-gradient holds the islands' disagreement, "
            "which it would amplify; use rule: progress",
        )
        require(
            plain or self.mix2.blocks is None,
            f"aggregator {kind} is unsound with mix2.blocks: what is not mixed is one island's noise",
        )
        require(
            not self.aggregator.needs_each or self.mix2.peers == "all",
            f"aggregator {kind} needs the progress of every island: mix2.peers all, got {self.mix2.peers}",
        )

    def outer_for(self, islands: int) -> tuple[float, float]:
        """lr and momentum of the outer optimizer; the method's own defaults where they are not set."""
        lr, momentum = self._defaults(islands)
        set_lr, set_momentum = self.outer.lr, self.outer.momentum
        if self.outer.kind == "sgd":
            momentum = 0.0
        return (lr if set_lr is None else set_lr, momentum if set_momentum is None else set_momentum)

    def _defaults(self, islands: int) -> tuple[float, float]:
        if self.aggregator.kind in ("iso", "iso-fast"):
            return next(((lr, momentum) for most, lr, momentum in _ISO_DEFAULTS if islands <= most), _ISO_BEYOND)
        return {"ends": (0.8, 0.7), "streaming": (0.4, 0.9)}.get(self.rule, (0.7, 0.9))

    def steps_of(self, island: int) -> int:
        """Inner steps of one island in a round."""
        return self.inner_steps if isinstance(self.inner_steps, int) else self.inner_steps[island]


def _parts(one: bool, two: bool) -> str:
    return " and ".join(name for name, used in (("mix1", one), ("mix2", two)) if used) or "neither mix1 nor mix2"
