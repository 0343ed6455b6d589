"""How many parameters a model has, block by block; without torch, for a login node."""

from __future__ import annotations

from collections.abc import Iterable

from loco_train.blocks import block_names, select_blocks
from loco_train.config.model import ModelConfig


def block_parameters(model: ModelConfig) -> dict[str, int]:
    """By block, in the model's order; vocabulary padding excluded."""
    hidden = model.hidden_size
    vocabulary = model.vocab_size * hidden
    sizes = {
        "embedding": vocabulary,
        # Each with the norm that it reads.
        "attention": 2 * model.head_size * (model.attention_heads + model.key_value_heads) * hidden + hidden,
        "mlp": 3 * model.ffn_hidden_size * hidden + hidden,
        "final-norm": hidden,
        "head": vocabulary,
    }
    names = block_names(layers=model.layers, tied=model.tied_embeddings)
    return {name: sizes[name.rpartition(".")[2]] for name in names}


def share_of(selectors: Iterable[str], model: ModelConfig) -> float:
    """Of all parameters, those of the blocks that are named."""
    sizes = block_parameters(model)
    chosen = select_blocks(selectors, layers=model.layers, tied=model.tied_embeddings)
    return sum(sizes[block] for block in chosen) / sum(sizes.values())
