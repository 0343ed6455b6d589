"""Which Hugging Face weights a logical parameter is made of: one table, read in both directions.

Rotary positions are applied to halves of a head in Megatron-core and in Hugging Face's Llama alike, so no rows are
permuted anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loco_train.config.model import ModelConfig
from loco_train.errors import ConversionError

Fusion = Literal["none", "qkv", "halves"]


@dataclass(frozen=True)
class WeightRule:
    """One logical parameter, or one of each layer (`{layer}`).

    foreign: its Hugging Face weights, in the order in which the fusion holds them.
    fusion: none: one weight. qkv: for each key-value group the rows of its queries, then key, then value.
        halves: the weights one after the other.
    vocabulary: rows are padded to ModelConfig.padded_vocab_size here and not there.
    """

    logical: str
    foreign: tuple[str, ...]
    shape: Callable[[ModelConfig], tuple[int, ...]]
    fusion: Fusion = "none"
    vocabulary: bool = False
    only_untied: bool = False


def _qkv_shape(model: ModelConfig) -> tuple[int, ...]:
    return (model.attention_heads + 2 * model.key_value_heads) * model.head_size, model.hidden_size


_LOGICAL_LAYER = "decoder.layers.{layer}"
_FOREIGN_LAYER = "model.layers.{layer}"
LLAMA: tuple[WeightRule, ...] = (
    WeightRule(
        "embedding.word_embeddings.weight",
        ("model.embed_tokens.weight",),
        lambda m: (m.padded_vocab_size, m.hidden_size),
        vocabulary=True,
    ),
    WeightRule(
        f"{_LOGICAL_LAYER}.input_layernorm.weight",
        (f"{_FOREIGN_LAYER}.input_layernorm.weight",),
        lambda m: (m.hidden_size,),
    ),
    WeightRule(
        f"{_LOGICAL_LAYER}.self_attention.linear_qkv.weight",
        tuple(f"{_FOREIGN_LAYER}.self_attn.{part}_proj.weight" for part in "qkv"),
        _qkv_shape,
        fusion="qkv",
    ),
    WeightRule(
        f"{_LOGICAL_LAYER}.self_attention.linear_proj.weight",
        (f"{_FOREIGN_LAYER}.self_attn.o_proj.weight",),
        lambda m: (m.hidden_size, m.attention_heads * m.head_size),
    ),
    WeightRule(
        f"{_LOGICAL_LAYER}.pre_mlp_layernorm.weight",
        (f"{_FOREIGN_LAYER}.post_attention_layernorm.weight",),
        lambda m: (m.hidden_size,),
    ),
    WeightRule(
        f"{_LOGICAL_LAYER}.mlp.linear_fc1.weight",
        tuple(f"{_FOREIGN_LAYER}.mlp.{part}_proj.weight" for part in ("gate", "up")),
        lambda m: (2 * m.ffn_hidden_size, m.hidden_size),
        fusion="halves",
    ),
    WeightRule(
        f"{_LOGICAL_LAYER}.mlp.linear_fc2.weight",
        (f"{_FOREIGN_LAYER}.mlp.down_proj.weight",),
        lambda m: (m.hidden_size, m.ffn_hidden_size),
    ),
    WeightRule("decoder.final_layernorm.weight", ("model.norm.weight",), lambda m: (m.hidden_size,)),
    WeightRule(
        "output_layer.weight",
        ("lm_head.weight",),
        lambda m: (m.padded_vocab_size, m.hidden_size),
        vocabulary=True,
        only_untied=True,
    ),
)


@dataclass(frozen=True)
class Weight:
    """A rule applied to one parameter of one model."""

    name: str
    foreign: tuple[str, ...]
    shape: tuple[int, ...]
    rule: WeightRule
    model: ModelConfig

    def split(self, logical: Tensor) -> dict[str, Tensor]:
        """Hugging Face weights by name, as views of the logical parameter where that is possible."""
        if tuple(logical.shape) != self.shape:
            raise ConversionError(f"{self.name} has the wrong shape", got=tuple(logical.shape), allowed=self.shape)
        if self.rule.vocabulary:
            logical = logical[: self.model.vocab_size]
        return dict(zip(self.foreign, self._parts(logical), strict=True))

    def fuse(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The logical parameter; the inverse of `split`.

        Padding rows get the mean of the real ones: at zero their logits would start far from all others'.
        """
        missing = [name for name in self.foreign if name not in weights]
        if missing:
            raise ConversionError(f"{self.name} cannot be built", got=f"no {', '.join(missing)}")
        logical = self._join([weights[name] for name in self.foreign])
        if self.rule.vocabulary:
            padding = self.shape[0] - logical.shape[0]
            logical = torch.cat([logical, logical.mean(dim=0, keepdim=True).expand(padding, -1)])
        if tuple(logical.shape) != self.shape:
            raise ConversionError(f"{self.name} has the wrong shape", got=tuple(logical.shape), allowed=self.shape)
        return logical

    def merge(self, stack: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The parameter whose every matrix is function([K, m, n]) of those of K parameters [K, *shape].

        Of padding rows the mean is taken.
        """
        end = self.model.vocab_size if self.rule.vocabulary else self.shape[0]
        parts = zip(*(self._parts(logical[:end]) for logical in stack), strict=True)
        merged = stack.new_empty(self.shape)
        merged[end:] = stack[:, end:].mean(0)
        merged[:end] = self._join([function(torch.stack(matrices)) for matrices in parts])
        return merged

    def foreign_shapes(self) -> dict[str, tuple[int, ...]]:
        parts = self.split(torch.empty(self.shape, device="meta"))
        return {name: tuple(part.shape) for name, part in parts.items()}

    def _parts(self, logical: Tensor) -> list[Tensor]:
        if self.rule.fusion == "halves":
            return list(logical.chunk(len(self.foreign)))
        if self.rule.fusion == "qkv":
            groups, rows = self.model.key_value_heads, self.model.head_size
            grouped = logical.view(groups, -1, rows, self.model.hidden_size)
            return [p.reshape(-1, self.model.hidden_size) for p in (grouped[:, :-2], grouped[:, -2], grouped[:, -1])]
        return [logical]

    def _join(self, parts: list[Tensor]) -> Tensor:
        if self.rule.fusion == "qkv":
            groups, rows, hidden = self.model.key_value_heads, self.model.head_size, self.model.hidden_size
            return torch.cat([p.reshape(groups, -1, rows, hidden) for p in parts], dim=1).reshape(-1, hidden)
        return torch.cat(parts) if len(parts) > 1 else parts[0]


def weights_of(model: ModelConfig) -> tuple[Weight, ...]:
    """Every parameter of a model, in model order."""
    weights: list[Weight] = []
    layer_rules = [rule for rule in LLAMA if "{layer}" in rule.logical]
    for rule in LLAMA:
        if rule in layer_rules:
            if rule is layer_rules[0]:
                weights += [_apply(r, model, layer) for layer in range(model.layers) for r in layer_rules]
        elif not (rule.only_untied and model.tied_embeddings):
            weights.append(_apply(rule, model, None))
    return tuple(weights)


def _apply(rule: WeightRule, model: ModelConfig, layer: int | None) -> Weight:
    names = tuple(name.format(layer=layer) for name in rule.foreign)
    return Weight(rule.logical.format(layer=layer), names, rule.shape(model), rule, model)
