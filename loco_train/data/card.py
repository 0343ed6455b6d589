"""The card of a dataset, `<prefix>.loco.json`: what is in it and which tokenizer made it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from loco_train.data.files import written_whole
from loco_train.data.megatron import idx_path
from loco_train.errors import DataError


@dataclass(frozen=True)
class DatasetCard:
    """What is known of a dataset without reading its tokens. None: made elsewhere, so unknown."""

    documents: int
    tokens: int
    largest_id: int
    bin_bytes: int
    bin_sha256: str
    idx_sha256: str
    tokenizer_sha256: str | None = None
    vocab_size: int | None = None

    def save(self, path: Path) -> None:
        """Write to `path`, whole or not at all."""
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")


def card_path(prefix: Path) -> Path:
    """Where the card of the dataset `prefix` lies."""
    return prefix.with_name(prefix.name + ".loco.json")


def load_card(prefix: Path) -> DatasetCard | None:
    """The card, or None where there is none.

    Raises:
        DataError: it is damaged.
    """
    path = card_path(prefix)
    try:
        values = json.loads(path.read_text())
        return DatasetCard(**{field.name: values[field.name] for field in fields(DatasetCard)})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "build the dataset again, or remove this file to use the dataset without knowing its tokenizer"
        raise DataError(f"{path} is damaged", got=repr(error), fix=fix) from error


def remember(prefix: Path, card: DatasetCard) -> None:
    """Keep what a scan found, so that the next start need not read every token again; a read-only folder is fine."""
    with contextlib.suppress(DataError):
        card.save(card_path(prefix))


def remove_dataset_names(prefix: Path) -> None:
    """Take a dataset's names away, index first: without it nothing takes the rest for a dataset."""
    idx_path(prefix).unlink(missing_ok=True)
    card_path(prefix).unlink(missing_ok=True)
