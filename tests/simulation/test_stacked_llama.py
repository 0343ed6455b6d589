"""The stacked model against transformers, and its islands against each other."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from loco_train.blocks import block_names, block_of
from loco_train.simulation.stacked_adamw import StackedAdamW
from loco_train.simulation.stacked_llama import Shape, StackedLlama
from loco_train.testing.simulated import foreign_name

SHAPE = Shape(layers=2, hidden=32, heads=4, ffn=48, sequence=16)


def parameters(islands: int) -> torch.Tensor:
    """Wide enough that attention and gates matter."""
    drawn = torch.stack([SHAPE.initial(seed) for seed in range(islands)])
    return drawn + 0.2 * torch.randn(drawn.shape, generator=torch.Generator().manual_seed(9))


def tokens(islands: int, batch: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (islands, batch, 17), generator=torch.Generator().manual_seed(4))


def test_is_transformers_llama():
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
    )  # fmt: skip
    theirs, flat = LlamaForCausalLM(config), parameters(1)
    ranges = SHAPE.layout.ranges()
    theirs.load_state_dict({foreign_name(s.name): flat[0, first:end].view(s.shape) for s, first, end in ranges})
    batch = tokens(1)
    with torch.no_grad():
        expected = theirs(batch[0, :, :-1]).logits
    # Some 100 roundings in a row of values below 30.
    torch.testing.assert_close(StackedLlama(SHAPE).logits(flat, batch[..., :-1])[0], expected, rtol=0, atol=1e-4)


def test_islands_do_not_see_each_other():
    model, flat, batch = StackedLlama(SHAPE), parameters(3), tokens(3)
    loss, gradient = model.gradients(flat, batch)
    for island in range(3):
        alone_loss, alone = model.gradients(flat[island : island + 1], batch[island : island + 1])
        torch.testing.assert_close(loss[island], alone_loss[0], rtol=1e-6, atol=0)
        # Batched and single products round in other orders.
        torch.testing.assert_close(gradient[island], alone[0], rtol=0, atol=1e-5 * float(alone.abs().max()))
    torch.testing.assert_close(model.losses(flat, batch), loss, rtol=1e-6, atol=0)


def test_every_parameter_belongs_to_a_block():
    assert {block_of(name) for name in SHAPE.parameters} == set(block_names(layers=2, tied=False))


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_adamw_with_clipping_is_torchs(scale):
    generator = torch.Generator().manual_seed(0)
    start, decayed = torch.randn(2, 50, generator=generator), (torch.arange(50) < 30).float()
    ours, optimizer = start.clone(), StackedAdamW(torch.zeros(2, 50), torch.zeros(2, 50), decayed)
    theirs = [[torch.nn.Parameter(row[:30].clone()), torch.nn.Parameter(row[30:].clone())] for row in start]
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}
    each = [
        torch.optim.AdamW([{"params": [a], "weight_decay": 0.1}, {"params": [b], "weight_decay": 0.0}], **settings)
        for a, b in theirs
    ]
    for step in range(4):
        active = [0, 1] if step != 2 else [1]  # island 0 rests once
        gradient = scale * torch.randn(len(active), 50, generator=generator)
        optimizer.step(ours, gradient, lr=1e-2, islands=torch.tensor(active))
        for row, island in zip(gradient, active, strict=True):
            for parameter, part in zip(theirs[island], (row[:30], row[30:]), strict=True):
                parameter.grad = part.clone()
            torch.nn.utils.clip_grad_norm_(theirs[island], 1.0)
            each[island].step()
    expected = torch.stack([torch.cat([p.detach() for p in pair]) for pair in theirs])
    # Four steps of some ten roundings of values below 4; clip_grad_norm_ adds 1e-6 to the norm.
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
