"""The sentencepiece tokenizer: training and use.

Text is kept as it is (no normalisation, no added or removed spaces), and what the vocabulary lacks is spelled in
bytes, so decoding gives back exactly what was encoded. The one exception is U+2581, which sentencepiece uses for the
space: it comes back as a space.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

from loco_train.data.files import written_whole
from loco_train.errors import DataError

UNKNOWN_ID, BEGIN_ID, END_ID, PAD_ID = 0, 1, 2, 3
SPECIAL_IDS = 4
BYTE_PIECES = 256

# The model file records the number of threads: one that followed the machine would change the file's hash.
_TRAINING_THREADS = 8
# sentencepiece leaves out of training, with a warning only, what is longer than its max_sentence_length (in bytes;
# a character has at most 4) and what holds one of its own marks: the tab and U+2047.
_PIECE_CHARACTERS = 1024
_RESERVED = re.compile("[\t\u2047\0]+")
_TOO_LARGE = re.compile(r"<= (\d+)")
_TOO_SMALL = re.compile(r"required_chars\D*(\d+) vs (\d+)")


class Tokenizer:
    """A trained sentencepiece model.

    Raises:
        DataError: the file is missing, is no sentencepiece model, or defines no end-of-text id.
    """

    def __init__(self, path: Path | str) -> None:
        from sentencepiece import SentencePieceProcessor

        self.path = Path(path)
        self.model = _read_model(self.path)
        self.sha256 = hashlib.sha256(self.model).hexdigest()
        try:
            self._processor = SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:
            raise _not_a_model(self.path) from error
        self.vocab_size = int(self._processor.vocab_size())
        self.eos = int(self._processor.eos_id())
        if self.vocab_size <= 0:
            raise _not_a_model(self.path)
        if self.eos < 0:
            raise DataError(
                f"the tokenizer {self.path} has no end-of-text token, which separates documents",
                fix="train it with an eos id, e.g. by `loco data tokenizer`",
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; no begin or end token is added."""
        return list(self._processor.encode(text))

    def encode_all(self, texts: Sequence[str], *, threads: int = 1) -> list[list[int]]:
        """Token ids of each text, on several threads."""
        return list(self._processor.encode(list(texts), num_threads=threads))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens give no text.

        Raises:
            DataError: an id outside the vocabulary.
        """
        wrong = [i for i in ids if not 0 <= i < self.vocab_size]
        if wrong:
            raise DataError("no such token id", got=wrong[0], allowed=f"0 to {self.vocab_size - 1}")
        return str(self._processor.decode(list(map(int, ids))))


def train_tokenizer(
    documents: Iterable[str],
    output: Path,
    *,
    vocab_size: int,
    character_coverage: float = 0.9995,
    max_bytes: int = 256 * 2**20,
) -> Tokenizer:
    """Train a byte-pair encoding and write it to `output`. The same documents give the same file.

    Args:
        vocab_size: all ids: 4 special (unknown 0, begin 1, end 2, padding 3), 256 bytes, the characters, the merges.
        character_coverage: share of the text whose characters become ids of their own; the rest is spelled in bytes.
        max_bytes: text after this many bytes is not used; memory is about ten times that.

    Raises:
        DataError: no text, or a vocabulary that is too large or too small for it; says which sizes work.
    """
    from sentencepiece import SentencePieceTrainer

    model = BytesIO()
    pieces = _training_pieces(documents, max_bytes=max_bytes)
    try:
        SentencePieceTrainer.train(
            sentence_iterator=pieces,
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            max_sentence_length=_PIECE_CHARACTERS * 4 + 1,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            unk_id=UNKNOWN_ID,
            bos_id=BEGIN_ID,
            eos_id=END_ID,
            pad_id=PAD_ID,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), vocab_size=vocab_size) from error
    with written_whole(output) as temporary:
        temporary.write_bytes(model.getvalue())
    return Tokenizer(output)


def _training_pieces(documents: Iterable[str], *, max_bytes: int) -> Iterator[str]:
    """Documents cut into pieces that sentencepiece accepts, at line ends where there are any."""
    left = max_bytes
    for document in documents:
        for run in _RESERVED.split(document):
            for piece in _cut(run):
                yield piece
                left -= len(piece.encode())
        if left <= 0:
            return


def _cut(text: str) -> Iterator[str]:
    first = 0
    while first < len(text):
        stop = first + _PIECE_CHARACTERS
        if stop < len(text):
            line_end = text.rfind("\n", first, stop)
            stop = line_end + 1 if line_end > first else stop
        yield text[first:stop]
        first = stop


def _read_model(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read the tokenizer {path}",
            got=error.strerror,
            fix="check data.tokenizer, or make one with `loco data tokenizer`",
        ) from error


def _not_a_model(path: Path) -> DataError:
    return DataError(f"{path} is damaged or no sentencepiece model", fix="make it again with `loco data tokenizer`")


def _training_error(message: str, *, vocab_size: int) -> DataError:
    problem = f"cannot train a tokenizer of vocab_size {vocab_size} on this text"
    if found := _TOO_LARGE.search(message):
        return DataError(
            problem, got="too little text", allowed=f"at most {found[1]}", fix="use more text or a smaller vocab_size"
        )
    if found := _TOO_SMALL.search(message):
        least = max(int(found[1]), int(found[2]))
        return DataError(
            problem,
            got="too many different characters",
            allowed=f"at least {least}",
            fix="use a larger vocab_size or a smaller character_coverage",
        )
    if "sentences_" in message or "empty" in message:
        return DataError("cannot train a tokenizer: there is no text", fix="check the input files")
    return DataError(problem, got=message)
