"""From a checkpoint that a user named to a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loco_train.checkpoint.assemble import IslandParameters, LogicalParameters
from loco_train.checkpoint.consensus import ConsensusParameters
from loco_train.checkpoint.read import Checkpoint
from loco_train.checkpoint.select import Selection
from loco_train.config.model import ModelConfig
from loco_train.conversion.huggingface import MAX_SHARD_BYTES, Export, TokenizerSource, export_huggingface
from loco_train.data.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.model"


def export_selection(
    selection: Selection,
    folder: Path,
    *,
    dtype: str = "bfloat16",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    force: bool = False,
    on_parameter: Callable[[str], None] | None = None,
) -> Export:
    """Export the consensus of the selected checkpoints, or the island where one is selected.

    Args: as `export_huggingface`. Hashes are not looked at; see `Selection.verify`.

    Raises:
        CheckpointError: the checkpoints do not hold whole parameters. ConversionError: as `export_huggingface`.
    """
    return export_huggingface(
        parameters_of(selection),
        model_of(selection.first),
        folder,
        tokenizer=_tokenizer_of(selection.first),
        dtype=dtype,
        max_shard_bytes=max_shard_bytes,
        force=force,
        on_parameter=on_parameter,
    )


def parameters_of(selection: Selection) -> LogicalParameters:
    """The mean over the selected islands, fp32."""
    return ConsensusParameters([IslandParameters(checkpoint) for checkpoint in selection.checkpoints])


def model_of(checkpoint: Checkpoint) -> ModelConfig:
    """The model that the checkpoint's own configuration describes."""
    return ModelConfig.model_validate(checkpoint.manifest.header.config["model"])


def _tokenizer_of(checkpoint: Checkpoint) -> TokenizerSource | None:
    if TOKENIZER_FILE not in {record.file for record in checkpoint.manifest.attachments}:
        return None
    return TokenizerSource(checkpoint.attachment(TOKENIZER_FILE), Tokenizer(checkpoint.folder / TOKENIZER_FILE).encode)
