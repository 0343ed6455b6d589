"""Export to Hugging Face: a folder that `AutoModelForCausalLM` and `AutoTokenizer` load as a Llama model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loco_train.checkpoint.assemble import LogicalParameters
from loco_train.checkpoint.atomic import write_file
from loco_train.checkpoint.retention import set_aside
from loco_train.checkpoint.tensors import save_tensors
from loco_train.config.model import ModelConfig
from loco_train.conversion.hf_tokenizer import SpecialIds, check_tokenizer, special_ids, write_tokenizer
from loco_train.conversion.weight_map import Weight, weights_of
from loco_train.errors import ConversionError
from loco_train.files import flush_to_disk, temporary_sibling

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MAX_SHARD_BYTES = 5 * 10**9  # Hugging Face's own habit: a file that every tool can map and every hub accepts


@dataclass(frozen=True)
class TokenizerSource:
    """The tokenizer that travels along.

    model: content of the sentencepiece model file.
    encode: sentencepiece's encode, text to ids; the exported tokenizer is compared with it.
    """

    model: bytes
    encode: Callable[[str], list[int]]


@dataclass(frozen=True)
class Export:
    """What was written."""

    folder: Path
    files: tuple[str, ...]
    parameters: int
    bytes: int


def export_huggingface(
    parameters: LogicalParameters,
    model: ModelConfig,
    folder: Path,
    *,
    tokenizer: TokenizerSource | None,
    dtype: str = "bfloat16",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    force: bool = False,
    on_parameter: Callable[[str], None] | None = None,
) -> Export:
    """Write `parameters` as a Hugging Face Llama folder; it appears under its name only when it is whole.

    Args:
        parameters: fp32; read one at a time, so memory holds one file's worth of weights.
        tokenizer: None exports the weights alone.
        dtype: "bfloat16", "float16" or "float32"; rounded once, from fp32.
        max_shard_bytes: largest file of weights; a single larger weight gets a file of its own.
        force: replace an earlier export in `folder`. Another kind of folder is never replaced.

    Raises:
        ConversionError: the target is in the way, or the model, the dtype or the tokenizer cannot be expressed.
    """
    if dtype not in DTYPES:
        raise ConversionError("unknown dtype for an export", got=dtype, allowed=", ".join(DTYPES))
    _check_target(folder, force=force)
    ids = special_ids(tokenizer.model) if tokenizer else SpecialIds(None, None, None)
    documents = {
        "config.json": llama_config(model, ids=ids, dtype=dtype),
        "generation_config.json": {"_from_model_config": True, **_generation_ids(ids)},
    }
    temporary = temporary_sibling(folder)
    try:
        temporary.mkdir(parents=True)
        for name, document in documents.items():
            write_file(temporary / name, _json(document))
        writer = _WeightWriter(temporary, DTYPES[dtype], max_shard_bytes)
        total = writer.write(parameters, weights_of(model), on_parameter=on_parameter)
        if tokenizer:
            write_tokenizer(tokenizer.model, temporary, max_length=model.max_positions)
            check_tokenizer(temporary, tokenizer.encode)
        _publish(temporary, folder)
    except OSError as error:
        raise ConversionError(
            f"the export to {folder} failed; nothing was left under that name",
            got=str(error),
            fix="see that there is room, that the folder may be written and that the checkpoint can be read",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    files = sorted(folder.iterdir())
    return Export(folder, tuple(f.name for f in files), total, sum(f.stat().st_size for f in files))


def llama_config(model: ModelConfig, *, ids: SpecialIds, dtype: str) -> dict[str, Any]:
    """config.json of a Llama model, with the keys that all versions of transformers and other readers know.

    transformers 5 writes `rope_parameters` and `dtype` instead, but still reads these; transformers 4, vLLM and
    llama.cpp would take their defaults for what they do not find, silently.
    """
    if model.hidden_size % model.attention_heads:
        raise ConversionError(
            "Hugging Face's Llama wants hidden_size to be a multiple of attention_heads, whatever head_dim is",
            got=f"{model.hidden_size} and {model.attention_heads}",
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.attention_heads,
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.head_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": model.norm_epsilon,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "rope_theta": model.rope_theta,
        "rope_scaling": _rope_scaling(model),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "use_cache": True,
        "torch_dtype": dtype,
        **_generation_ids(ids),
    }


def _rope_scaling(model: ModelConfig) -> dict[str, Any] | None:
    scaling = model.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }


def _generation_ids(ids: SpecialIds) -> dict[str, int | None]:
    # Always written: where they are absent, transformers assumes 1 and 2.
    return {f"{name}_token_id": value for name, value in asdict(ids).items()}


class _WeightWriter:
    """Writes weights into files of at most `max_shard_bytes`, with an index where there are several."""

    def __init__(self, folder: Path, dtype: torch.dtype, max_shard_bytes: int) -> None:
        self.folder = folder
        self.dtype = dtype
        self.max_shard_bytes = max_shard_bytes

    def write(
        self, parameters: LogicalParameters, weights: tuple[Weight, ...], *, on_parameter: Callable[[str], None] | None
    ) -> int:
        """Write all; returns the number of parameters written."""
        _check_names(parameters.shapes, weights)
        sizes = {name: _numel(shape) for weight in weights for name, shape in weight.foreign_shapes().items()}
        files = _assign_files(sizes, max_numel=max(1, self.max_shard_bytes // self.dtype.itemsize))
        last_of = {file: name for name, file in files.items()}
        held: dict[str, Tensor] = {}
        for name, tensor in self._stream(parameters, weights, on_parameter):
            held[name] = tensor
            if last_of[files[name]] == name:
                # "format" is what transformers looks for before it reads a file.
                save_tensors(held, self.folder / files[name], metadata={"format": "pt"})
                held = {}
        total = sum(sizes.values())
        if len(last_of) > 1:
            metadata = {"total_size": total * self.dtype.itemsize, "total_parameters": total}
            index = {"metadata": metadata, "weight_map": files}
            write_file(self.folder / "model.safetensors.index.json", _json(index))
        return total

    def _stream(
        self, parameters: LogicalParameters, weights: tuple[Weight, ...], on_parameter: Callable[[str], None] | None
    ) -> Iterator[tuple[str, Tensor]]:
        for weight in weights:
            for name, part in weight.split(parameters.read(weight.name)).items():
                yield name, self._rounded(name, part)
            if on_parameter:
                on_parameter(weight.name)

    def _rounded(self, name: str, part: Tensor) -> Tensor:
        # Contiguous and a copy: safetensors refuses tensors that share memory.
        rounded = part.to(self.dtype, copy=True).contiguous()
        if not rounded.isfinite().all():
            why = (
                "float16 ends at 65504; use bfloat16"
                if part.isfinite().all()
                else "the model diverged; use another step"
            )
            raise ConversionError(f"{name} holds infinity or NaN as {self.dtype}", fix=why)
        return rounded


def _check_names(shapes: Mapping[str, tuple[int, ...]], weights: tuple[Weight, ...]) -> None:
    expected = {weight.name for weight in weights}
    if expected != set(shapes):
        raise ConversionError(
            "the checkpoint's parameters are not the model's",
            got=f"surplus: {', '.join(sorted(set(shapes) - expected)) or 'none'}",
            allowed=f"missing: {', '.join(sorted(expected - set(shapes))) or 'none'}",
        )


def _assign_files(sizes: Mapping[str, int], *, max_numel: int) -> dict[str, str]:
    """File name of each weight, filled in order."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, numel in sizes.items():
        if groups[-1] and filled + numel > max_numel:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += numel
    if len(groups) == 1:
        return dict.fromkeys(groups[0], "model.safetensors")
    count = len(groups)
    return {n: f"model-{i:05d}-of-{count:05d}.safetensors" for i, group in enumerate(groups, start=1) for n in group}


def _check_target(folder: Path, *, force: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not (folder / "config.json").is_file():
        raise ConversionError(
            f"{folder} is in the way and is no exported model", fix="name a folder that is not there yet"
        )
    if not force:
        raise ConversionError(f"{folder} is not empty", fix="name another folder, or replace this one with --force")


def _publish(temporary: Path, folder: Path) -> None:
    for file in temporary.iterdir():
        flush_to_disk(file)
    flush_to_disk(temporary)
    with set_aside(folder):
        os.rename(temporary, folder)
    flush_to_disk(folder.parent)


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
