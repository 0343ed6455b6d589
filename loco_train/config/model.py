"""Settings of the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from loco_train.config.settings import Settings, require


class RopeScaling(Settings):
    """Llama-3 frequency scaling (the only kind): low frequencies are slowed by `factor`, middle ones blended."""

    kind: Literal["llama3"] = "llama3"
    factor: PositiveFloat = 8.0
    low_frequency_factor: PositiveFloat = 1.0
    high_frequency_factor: PositiveFloat = 4.0
    original_max_positions: PositiveInt = 8192

    @model_validator(mode="after")
    def _check(self) -> RopeScaling:
        require(
            self.high_frequency_factor > self.low_frequency_factor,
            "high_frequency_factor must be greater than low_frequency_factor",
        )
        return self


class ModelConfig(Settings):
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    layers: PositiveInt
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    attention_heads: PositiveInt
    key_value_heads: PositiveInt = Field(description="Groups of grouped-query attention; attention_heads for none.")
    head_dim: PositiveInt | None = Field(None, description="Width of a head; None: hidden_size / attention_heads.")
    vocab_size: PositiveInt = Field(description="Rows of the embedding before padding; at least the tokenizer's.")
    vocab_divisible_by: PositiveInt = Field(
        128, description="The embedding is padded to a multiple of this; a multiple of parallel.tensor."
    )
    max_positions: PositiveInt = Field(2048, description="Longest sequence the model is meant for, in tokens.")
    tied_embeddings: bool = Field(False, description="One weight for the embedding and the output layer.")
    rope_theta: PositiveFloat = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: PositiveFloat = 1e-5
    init_std: PositiveFloat = 0.02
    depth_scaled_init: bool = Field(True, description="Output projections start at init_std / sqrt(2 layers).")

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        heads, groups = self.attention_heads, self.key_value_heads
        require(heads % groups == 0, f"attention_heads ({heads}) must be a multiple of key_value_heads ({groups})")
        if self.head_dim is None:
            require(
                self.hidden_size % heads == 0,
                f"hidden_size ({self.hidden_size}) must be a multiple of attention_heads ({heads}), or set head_dim",
            )
        require(self.head_size % 2 == 0, f"the width of a head ({self.head_size}) must be even for rotary positions")
        return self

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.attention_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding; independent of the tensor parallel degree, so that checkpoints are too."""
        return -(-self.vocab_size // self.vocab_divisible_by) * self.vocab_divisible_by

    @property
    def parameters(self) -> int:
        """Number of parameters, vocabulary padding excluded."""
        attention = self.head_size * (2 * self.attention_heads + 2 * self.key_value_heads) * self.hidden_size
        layer = attention + 3 * self.hidden_size * self.ffn_hidden_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return embeddings + self.layers * layer + self.hidden_size
