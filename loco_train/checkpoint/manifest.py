"""What a checkpoint says about itself: whose it is, where the run stood, and which file holds which shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from loco_train.errors import CheckpointError
from loco_train.shards import Shard

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Header:
    """What is the same on every rank of an island.

    run_id: tells this run from another of the same name. island, islands: whose checkpoint, and of how many.
    step: inner steps done since the start of the run. round: outer rounds done. steps_into_round: inner steps done
        since the last outer step. cursor: first sample ordinal of the current round. tokens: consumed by all islands.
    tensor, pipeline, data: degrees of the island's layout.
    config: the whole resolved RunConfig as JSON.
    """

    run_id: str
    run_name: str
    island: int
    islands: int
    step: int
    round: int
    steps_into_round: int
    cursor: int
    tokens: int
    tensor: int
    pipeline: int
    data: int
    config: dict[str, Any]

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class FileRecord:
    """A file of the checkpoint as it was written."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class RankRecord(FileRecord):
    """The tensors of one rank: the file, the shards that it holds, and the scalars of its optimizer."""

    rank: int
    shards: tuple[Shard, ...]
    scalars: dict[str, float]

    @staticmethod
    def from_json(data: dict[str, Any]) -> RankRecord:
        return RankRecord(**dict(data, shards=tuple(Shard.from_json(s) for s in data["shards"])))


@dataclass(frozen=True)
class Manifest:
    """The header, a record for each rank (at its index), and the attached files (tokenizer, config.yaml)."""

    header: Header
    ranks: tuple[RankRecord, ...]
    attachments: tuple[FileRecord, ...] = ()

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return (*self.ranks, *self.attachments)

    def to_text(self) -> str:
        """JSON with the format version and a digest of all the rest, so that a changed byte here shows too."""
        body = asdict(self)
        document = {"format_version": FORMAT_VERSION, "config_sha256": config_digest(self.header.config), **body}
        return json.dumps({**document, "digest": _digest(document)}, indent=1) + "\n"

    @staticmethod
    def from_text(text: str, *, where: object) -> Manifest:
        """Parse `to_text`; CheckpointError (naming `where`) on another format version or damage."""
        try:
            document = json.loads(text)
            version = document.pop("format_version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{where} is no manifest of a checkpoint: {error!r}") from error
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{where} has another format version",
                got=version,
                allowed=FORMAT_VERSION,
                fix="use the version of loco-train that wrote this checkpoint",
            )
        if document.pop("digest", None) != _digest({"format_version": version, **document}):
            raise CheckpointError(f"{where} is damaged: its content does not match its own digest")
        return _parse(document, where=where)


def config_digest(config: Mapping[str, Any]) -> str:
    """sha256 of a configuration, independent of the order of its keys."""
    return _digest(config)


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _parse(document: dict[str, Any], *, where: object) -> Manifest:
    document.pop("config_sha256", None)
    try:
        return Manifest(
            header=Header(**document["header"]),
            ranks=tuple(RankRecord.from_json(rank) for rank in document["ranks"]),
            attachments=tuple(FileRecord(**record) for record in document["attachments"]),
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{where} lacks a part: {error!r}") from error


def header_differences(first: Header, second: Header) -> list[str]:
    """Names of the fields in which two headers differ."""
    return [f.name for f in fields(Header) if getattr(first, f.name) != getattr(second, f.name)]
