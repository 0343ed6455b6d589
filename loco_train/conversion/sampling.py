"""What an exported model does when transformers loads it: text that it continues, and its held-out loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from loco_train.errors import ConversionError


@dataclass(frozen=True)
class Continuation:
    """A prompt and the text that the model put after it."""

    prompt: str
    text: str


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn.

    new_tokens: at most, fewer where the model ends the document.
    temperature: 0 takes the likeliest token each time.
    top_p: draw from the likeliest tokens that together have this probability; 1: from all.
    """

    new_tokens: int = 64
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0


def sample(
    folder: Path, prompts: Sequence[str], *, settings: SamplingSettings, device: str = "cpu"
) -> list[Continuation]:
    """Continue each prompt by the model in a Hugging Face folder; the same seed gives the same text.

    Raises:
        ConversionError: the folder is not a model with a tokenizer, or a prompt is not usable.
    """
    from transformers import AutoTokenizer

    model = load_model(folder, device=device)
    if not (folder / "tokenizer_config.json").is_file():
        raise ConversionError(f"{folder} holds no tokenizer", fix="export the checkpoint with its tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return [_continue(model, tokenizer, prompt, settings, seed=settings.seed + i) for i, prompt in enumerate(prompts)]


def huggingface_loss(folder: Path, batches: Iterable[Tensor], *, device: str = "cpu") -> float:
    """Mean cross-entropy, in nats a token, of the model in a Hugging Face folder.

    Args:
        batches: int64 [sequences, sequence_length + 1]; each token but the first is predicted from those before it.

    Weights are converted to fp32 and so is the arithmetic; the sum over tokens is taken in fp64.
    """
    model = load_model(folder, device=device)
    total, tokens = 0.0, 0
    with torch.inference_mode():
        for batch in batches:
            inputs, targets = batch[:, :-1].to(device), batch[:, 1:].to(device)
            logits = model(input_ids=inputs, use_cache=False).logits
            losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
            total += losses.double().sum().item()
            tokens += targets.numel()
    if not tokens:
        raise ConversionError("no held-out tokens were given to evaluate the exported model on")
    return total / tokens


def load_model(folder: Path, *, device: str = "cpu") -> Any:
    """The model in a Hugging Face folder, in fp32 and evaluation mode; nothing is looked up on the internet."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    # Its bar writes between the lines of ours.
    logging.disable_progress_bar()

    if not (folder / "config.json").is_file():
        raise ConversionError(f"{folder} is no Hugging Face model: it has no config.json", fix="run loco export first")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).to(device).eval()


def _continue(model: Any, tokenizer: Any, prompt: str, settings: SamplingSettings, *, seed: int) -> Continuation:
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"].long()
    if not ids.numel():
        # An empty prompt means "begin a document". In training, what begins follows the end of another; a begin token
        # is not used there, so the model does not know it.
        if tokenizer.eos_token_id is None:
            raise ConversionError("an empty prompt needs a tokenizer with an eos token", fix="give a prompt")
        ids = torch.tensor([[tokenizer.eos_token_id]])
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        output = model.generate(
            ids.to(model.device),
            attention_mask=torch.ones_like(ids).to(model.device),
            **_arguments(tokenizer, settings),
        )
    return Continuation(prompt, _new_text(tokenizer, ids[0].tolist(), output[0].tolist()))


def _arguments(tokenizer: Any, settings: SamplingSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {"max_new_tokens": settings.new_tokens, "pad_token_id": tokenizer.eos_token_id}
    if settings.temperature == 0:
        return {**arguments, "do_sample": False}
    drawing = {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
    return {**arguments, **drawing}


def _new_text(tokenizer: Any, before: list[int], whole: list[int]) -> str:
    """The text after the prompt, as the difference of two decodings: the first new token may begin with a space."""
    prompt: str = tokenizer.decode(before, skip_special_tokens=True)
    text: str = tokenizer.decode(whole, skip_special_tokens=True)
    return text[len(prompt) :] if text.startswith(prompt) else tokenizer.decode(whole[len(before) :])
