"""A small byte-level Llama of many islands at once: every parameter and every product has the islands in front.

One process trains 8 to 128 islands in the time of one or two, because small matrices are multiplied in batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from loco_train.shards import FlatLayout, Partition, Shard


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; ffn: of the SwiGLU, sequence: tokens. The vocabulary is that of bytes, unless set.

    groups: of grouped-query attention; None: as many as heads. head: width of one; None: hidden / heads.
    tied: the embedding is the output layer too.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    ffn: int = 176
    sequence: int = 64
    vocabulary: int = 256
    groups: int | None = None
    head: int | None = None
    tied: bool = False

    @property
    def head_width(self) -> int:
        return self.head or self.hidden // self.heads

    @property
    def key_heads(self) -> int:
        return self.groups or self.heads

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter by name. q, k, v and gate, up are apart; names are those of `loco_train.blocks`."""
        shapes: dict[str, tuple[int, ...]] = {"embedding.word_embeddings.weight": (self.vocabulary, self.hidden)}
        queries, keys = self.heads * self.head_width, self.key_heads * self.head_width
        for layer in range(self.layers):
            prefix = f"decoder.layers.{layer}"
            shapes[f"{prefix}.input_layernorm.weight"] = (self.hidden,)
            rows = {"q": queries, "k": keys, "v": keys}
            shapes |= {f"{prefix}.self_attention.{n}.weight": (count, self.hidden) for n, count in rows.items()}
            shapes[f"{prefix}.self_attention.o.weight"] = (self.hidden, queries)
            shapes[f"{prefix}.pre_mlp_layernorm.weight"] = (self.hidden,)
            shapes |= {f"{prefix}.mlp.{n}.weight": (self.ffn, self.hidden) for n in ("gate", "up")}
            shapes[f"{prefix}.mlp.down.weight"] = (self.hidden, self.ffn)
        shapes["decoder.final_layernorm.weight"] = (self.hidden,)
        return shapes if self.tied else shapes | {"output_layer.weight": (self.vocabulary, self.hidden)}

    @property
    def layout(self) -> FlatLayout:
        """The parameters one after the other, without gaps."""
        shards, offsets, end = [], [], 0
        for name, shape in self.parameters.items():
            offsets.append(end)
            shards.append(Shard(name, shape, Partition(), 0, torch.Size(shape).numel()))
            end += shards[-1].length
        return FlatLayout(tuple(shards), tuple(offsets), end)

    def initial(self, seed: int) -> Tensor:
        """Fresh parameters, fp32 [n]: gains 1, matrices normal, those that end a residual branch smaller with depth."""
        generator = torch.Generator().manual_seed(seed)
        flat = torch.empty(self.layout.numel)
        for shard, first, end in self.layout.ranges():
            if len(shard.shape) == 1:
                flat[first:end] = 1.0
                continue
            std = 0.02 if not shard.name.endswith((".o.weight", ".down.weight")) else 0.02 / (2 * self.layers) ** 0.5
            flat[first:end] = std * torch.randn(shard.length, generator=generator)
        return flat


class StackedLlama:
    """The model over parameters [M, n] in the shape's layout."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._ranges = {s.name: (a, b, s.shape) for s, a, b in shape.layout.ranges()}
        frequencies = 10000.0 ** -(torch.arange(0, shape.head_width, 2) / shape.head_width)
        angles = torch.outer(torch.arange(shape.sequence), frequencies)
        self._cos, self._sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def gradients(self, parameters: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Loss [M] in nats and its gradient [M, n]. tokens: [M, batch, sequence + 1] int64."""
        leaves = {
            name: parameters[:, a:b].view(-1, *size).detach().requires_grad_()
            for name, (a, b, size) in self._ranges.items()
        }
        with torch.enable_grad():
            loss = _losses(self._logits(leaves, tokens[..., :-1]), tokens[..., 1:])
            found = torch.autograd.grad(loss.sum(), list(leaves.values()))
        return loss.detach(), torch.cat([gradient.flatten(1) for gradient in found], dim=1)

    @torch.no_grad()
    def losses(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        """Loss [M] in nats."""
        return _losses(self.logits(parameters, tokens[..., :-1]), tokens[..., 1:])

    @torch.no_grad()
    def logits(self, parameters: Tensor, tokens: Tensor) -> Tensor:
        """[M, batch, sequence, vocabulary] for tokens [M, batch, sequence]."""
        views = {name: parameters[:, a:b].view(-1, *size) for name, (a, b, size) in self._ranges.items()}
        return self._logits(views, tokens)

    def _logits(self, p: dict[str, Tensor], tokens: Tensor) -> Tensor:
        islands, batch, length = tokens.shape
        x = torch.stack([F.embedding(t, e) for t, e in zip(tokens, p["embedding.word_embeddings.weight"], strict=True)])
        x = x.flatten(1, 2)  # [M, batch * length, hidden]
        for layer in range(self.shape.layers):
            prefix = f"decoder.layers.{layer}"
            normed = _norm(x, p[f"{prefix}.input_layernorm.weight"])
            x = x + self._attention(normed, p, f"{prefix}.self_attention", batch, length)
            normed = _norm(x, p[f"{prefix}.pre_mlp_layernorm.weight"])
            gate, up = (_linear(normed, p[f"{prefix}.mlp.{name}.weight"]) for name in ("gate", "up"))
            x = x + _linear(F.silu(gate) * up, p[f"{prefix}.mlp.down.weight"])
        x = _norm(x, p["decoder.final_layernorm.weight"])
        output = p["embedding.word_embeddings.weight" if self.shape.tied else "output_layer.weight"]
        return _linear(x, output).view(islands, batch, length, self.shape.vocabulary)

    def _attention(self, x: Tensor, p: dict[str, Tensor], prefix: str, batch: int, length: int) -> Tensor:
        def split(name: str, count: int) -> Tensor:
            rows = _linear(x, p[f"{prefix}.{name}.weight"])
            return rows.view(-1, length, count, self.shape.head_width).transpose(1, 2)

        heads, groups = self.shape.heads, self.shape.key_heads
        q, k, v = self._rotated(split("q", heads)), self._rotated(split("k", groups)), split("v", groups)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups < heads).transpose(1, 2)
        return _linear(mixed.reshape(*x.shape[:2], -1), p[f"{prefix}.o.weight"])

    def _rotated(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        first, second = x.chunk(2, dim=-1)
        return x * self._cos[:length] + torch.cat([-second, first], dim=-1) * self._sin[:length]


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """[M, rows, in] by [M, out, in] to [M, rows, out]."""
    return torch.bmm(x, weight.transpose(1, 2))


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * gain[:, None]


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    per_token = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
    return per_token.view(len(labels), -1).mean(1)
