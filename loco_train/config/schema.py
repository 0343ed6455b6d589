"""Every setting of a run: type, unit, default and reason. No torch here: settings work on a login node.

Each class checks itself and changes nothing. `load.py` reads YAML and overrides into `RunConfig`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loco_train.blocks import select_blocks
from loco_train.config.health import HealthConfig
from loco_train.config.method import MethodConfig
from loco_train.config.model import ModelConfig
from loco_train.config.settings import Fraction, NonNegativeFloat, Settings, require
from loco_train.graphs import reachable
from loco_train.units import Bytes, Duration


class NetworkConfig(Settings):
    """The links between islands."""

    backend: Literal["auto", "gloo", "nccl"] = Field("auto", description="auto: nccl with GPUs, else gloo.")
    interface: str | None = Field(None, description="Name of the network interface for gloo; None: by host name.")
    exchange_timeout: Duration = Field(
        Duration(300), description="Deadline of one exchange; above the transfer time of the model, or it looks dead."
    )
    rendezvous_timeout: Duration = Field(Duration(600), description="How long islands wait for each other at start.")
    bucket_bytes: Bytes = Field(Bytes(64 * 2**20), description="Payload of one all-reduce; more, smaller ones overlap.")

    @model_validator(mode="after")
    def _check(self) -> NetworkConfig:
        require(int(self.bucket_bytes) >= 4096, f"bucket_bytes ({self.bucket_bytes}) must be at least 4KiB")
        for name in ("exchange_timeout", "rendezvous_timeout"):
            require(float(getattr(self, name)) > 0, f"{name} must be longer than 0 s")
        return self


class DataSource(Settings):
    """A Megatron indexed dataset (`path`.bin and `path`.idx) and its share of the mix."""

    path: str
    weight: PositiveFloat = 1.0


class DataConfig(Settings):
    """The data mix. Held-out documents are the last `heldout_fraction` of each source, or sources of their own."""

    tokenizer: str = Field(description="A sentencepiece model file; its hash must be the datasets'.")
    train: Annotated[tuple[DataSource, ...], Field(min_length=1)]
    heldout: tuple[DataSource, ...] = ()
    heldout_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.01, description="Of each training source's documents, from its end, where `heldout` is empty."
    )


class ParallelConfig(Settings):
    """How the ranks of one island share the model. data is what remains of the island's ranks, and is checked."""

    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    data: PositiveInt = 1
    zero_stage: Literal[1, 2, 3] = 1

    @model_validator(mode="after")
    def _check(self) -> ParallelConfig:
        require(
            self.pipeline == 1 or self.zero_stage == 1,
            f"pipeline ({self.pipeline}) > 1 works with zero_stage 1 only (got {self.zero_stage}): DeepSpeed's "
            "pipeline engine needs whole gradients; set parallel.zero_stage=1 or parallel.pipeline=1",
        )
        return self

    @property
    def ranks(self) -> int:
        """Ranks of one island."""
        return self.tensor * self.pipeline * self.data


class BatchConfig(Settings):
    """Sizes of one inner step of one island, in sequences."""

    sequence_length: PositiveInt = Field(description="Tokens of a sequence.")
    island: PositiveInt = Field(description="Sequences that one island consumes in one inner step.")
    micro: PositiveInt = Field(1, description="Sequences of one forward pass on one data parallel rank.")


Decay = Annotated[float, Field(ge=0, lt=1)]


class InnerOptimizerConfig(Settings):
    """The optimizer of the inner steps."""

    kind: Literal["adamw", "sgd"] = "adamw"
    implementation: Literal["auto", "torch", "deepspeed", "apex"] = Field(
        "auto", description="auto: apex, else DeepSpeed's fused AdamW on CUDA; torch fused elsewhere."
    )
    lr: PositiveFloat = Field(4e-4, description="Peak learning rate.")
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = Field(0.1, description="Decoupled; matrices only, norm gains have none.")
    clip_grad_norm: NonNegativeFloat = Field(1.0, description="Over the whole model of the island; 0: no clipping.")


class ScheduleConfig(Settings):
    """The learning rate as a function of the tokens that all islands have consumed."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_fraction: Fraction = Field(0.1, description="Of all tokens; linear from start_fraction to the peak.")
    start_fraction: Fraction = Field(0.01, description="Of the peak, at token 0.")
    final_fraction: Fraction = Field(0.1, description="Of the peak, at the last token.")


class PrecisionConfig(Settings):
    """Number formats. Masters, base, momentum and averages are always fp32."""

    parameters: Literal["bf16", "fp32"] = "bf16"
    accumulation: Literal["fp32", "bf16"] = Field("fp32", description="Of gradients over micro-batches.")


class IslandsConfig(Settings):
    """How many islands train together, which one this is, and where they meet."""

    count: PositiveInt = 1
    index: Annotated[int, Field(ge=0)] = Field(0, description="This island; set by the launcher.")
    rendezvous: str | None = Field(None, description="host:port of the store where islands meet; None for one island.")

    @model_validator(mode="after")
    def _check(self) -> IslandsConfig:
        require(self.index < self.count, f"index ({self.index}) must be below count ({self.count})")
        return self


class EvaluationConfig(Settings):
    """Held-out loss."""

    every_rounds: Annotated[int, Field(ge=0)] = Field(0, description="0: only before the first and after the last.")
    sequences: PositiveInt = Field(64, description="Held-out sequences, the same ones every time.")


class CheckpointConfig(Settings):
    """When whole checkpoints are written and how many are kept."""

    every_rounds: Annotated[int, Field(ge=0)] = Field(1, description="0: none at round boundaries but the last.")
    every_steps: Annotated[int, Field(ge=0)] = Field(0, description="Also inside rounds; 0: not.")
    keep_last: Annotated[int, Field(ge=2)] = Field(
        2, description="At least 2; besides, what islands need to go back to a round that all of them saved is kept."
    )


class TelemetryConfig(Settings):
    """Where events go besides events.jsonl, which is always written."""

    console: bool = True
    tensorboard: bool = True


class RunConfig(Settings):
    """One run: one model, one method, one network, one data mix, and how they are trained."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    run_dir: str = Field(description="Folder of the run: config, events, logs, checkpoints.")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1234
    rounds: PositiveInt = Field(description="Outer rounds in all; of method.inner_steps inner steps each.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is one, else cpu.")
    model: ModelConfig
    method: MethodConfig
    network: NetworkConfig = NetworkConfig()
    data: DataConfig
    islands: IslandsConfig = IslandsConfig()
    parallel: ParallelConfig = ParallelConfig()
    batch: BatchConfig
    recompute: Literal["none", "full"] = Field("none", description="full: recompute each layer in the backward pass.")
    optimizer: InnerOptimizerConfig = InnerOptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    precision: PrecisionConfig = PrecisionConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    health: HealthConfig = HealthConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        self._check_model_fits_parallel()
        self._check_batch()
        self._check_method_fits()
        self.health.check_fits(self.method, share=self.batch.micro * self.parallel.data)
        return self

    def _check_method_fits(self) -> None:
        method, count = self.method, self.islands.count
        require(
            method.rule != "none" or count == 1,
            f"method data-parallel has no outer step, but islands.count is {self.islands.count}: use islands.count=1 "
            "with parallel.data for plain data parallelism, or method=diloco",
        )
        steps = method.inner_steps
        require(
            isinstance(steps, int) or len(steps) == count,
            f"method.inner_steps gives {1 if isinstance(steps, int) else len(steps)} islands their steps, but "
            f"islands.count is {count}",
        )
        _check_links("method.mix1.links", method.mix1.links, count)
        _check_links("method.mix2.links", method.mix2.links, count)
        most = self.model.layers + 1  # layers in turn, then what follows them: more fragments would be empty
        require(
            method.rule != "streaming" or method.streaming.fragments <= most,
            f"method.streaming.fragments ({method.streaming.fragments}) must be at most {most}: the model has "
            f"{self.model.layers} layers, and a head",
        )
        smallest = 4 * self.model.hidden_size  # the final norm
        budget = method.mix2.budget
        require(
            budget is None or budget >= smallest,
            f"method.mix2.budget ({budget}) is less than the smallest block of the model, {smallest} B",
        )
        if isinstance(method.mix2.blocks, tuple):
            try:
                select_blocks(method.mix2.blocks, layers=self.model.layers, tied=self.model.tied_embeddings)
            except ValueError as error:
                raise ValueError(f"method.mix2.blocks: {error}") from None

    def _check_model_fits_parallel(self) -> None:
        model, tensor = self.model, self.parallel.tensor
        sizes = (
            ("attention_heads", model.attention_heads),
            ("key_value_heads", model.key_value_heads),
            ("ffn_hidden_size", model.ffn_hidden_size),
            ("vocab_divisible_by", model.vocab_divisible_by),
        )
        for name, size in sizes:
            require(size % tensor == 0, f"model.{name} ({size}) must be a multiple of parallel.tensor ({tensor})")
        require(
            model.layers >= self.parallel.pipeline,
            f"model.layers ({model.layers}) must be at least parallel.pipeline ({self.parallel.pipeline})",
        )

    def _check_batch(self) -> None:
        batch, share = self.batch, self.batch.micro * self.parallel.data
        require(
            batch.island % share == 0,
            f"batch.island ({batch.island}) must be a multiple of batch.micro * parallel.data ({share})",
        )
        require(
            self.evaluation.sequences % share == 0,
            f"evaluation.sequences ({self.evaluation.sequences}) must be a multiple of batch.micro * parallel.data "
            f"({share})",
        )
        require(
            batch.sequence_length <= self.model.max_positions,
            f"batch.sequence_length ({batch.sequence_length}) is over model.max_positions ({self.model.max_positions})",
        )

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of one inner step on one data parallel rank."""
        return self.batch.island // (self.batch.micro * self.parallel.data)

    @property
    def health_sequences(self) -> int:
        """Held-out sequences for the JS distance."""
        share = self.batch.micro * self.parallel.data
        return self.health.sequences or -(-8 // share) * share

    @property
    def steps_per_round(self) -> tuple[int, ...]:
        """Inner steps of each island in a round."""
        return tuple(self.method.steps_of(island) for island in range(self.islands.count))

    @property
    def inner_steps(self) -> int:
        """Inner steps of this island in a round."""
        return self.method.steps_of(self.islands.index)

    @property
    def tokens_per_round(self) -> int:
        """Tokens that all islands together consume in one round."""
        return sum(self.steps_per_round) * self.batch.island * self.batch.sequence_length

    @property
    def total_tokens(self) -> int:
        """Tokens that all islands together consume in the run."""
        return self.rounds * self.tokens_per_round


def _check_links(name: str, links: tuple[tuple[int, int], ...] | None, count: int) -> None:
    if links is None:
        return
    for pair in links:
        require(
            all(0 <= island < count for island in pair) and pair[0] != pair[1],
            f"{name}: {list(pair)} is no pair of two of the islands 0 to {count - 1}",
        )
    reached = reachable(0, lambda island: {i for pair in links if island in pair for i in pair})
    apart = ", ".join(str(island) for island in range(count) if island not in reached)
    require(not apart, f"{name} must join all islands, or they never agree: no way leads from island 0 to {apart}")
