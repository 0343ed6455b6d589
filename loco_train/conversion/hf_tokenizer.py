"""A sentencepiece model as a Hugging Face fast tokenizer that gives the same ids.

Built with the `tokenizers` library from what the model file says about itself (kind, normalisation, dummy prefix,
byte fallback); the ready-made Llama converter assumes one particular combination of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loco_train.errors import ConversionError

SPACE = "\u2581"
# Values of sentencepiece's ModelProto.SentencePiece.Type and TrainerSpec.ModelType.
_NORMAL, _USER_DEFINED = 1, 4
_UNIGRAM, _BPE = 1, 2

# What converters get wrong: leading, repeated and trailing spaces, line breaks, tabs, characters outside the
# vocabulary (byte fallback), combined emoji, combining accents, the escape of the space itself.
PROBES = (
    "", " ", "  ", "a", " a", "  a  b ", "\n", "\n\n", "a\n b\n\n  c\t\td\r\n",
    "Hello, world!", "def f(x):\n    return x\n", "1234567890 3.14e-10", "...!!!???", "aaaaaaaaaaaaaaaa",
    "\u00e9t\u00e9 e\u0301 na\u00efve", "\u4f60\u597d\uff0c\u4e16\u754c", "\u043f\u0440\u0438\u0432\u0435\u0442",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7", "\u2581a\u2581\u2581b",
    "\ufb01 \u2460 \uff21 \u00bd", "\u00a0x\u3000y\u200bz",
)  # fmt: skip


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens of a sentencepiece model; None where it has none."""

    bos: int | None
    eos: int | None
    pad: int | None


def special_ids(model: bytes) -> SpecialIds:
    """Special ids as the model file states them."""
    spec = _parse(model).trainer_spec
    bos, eos, pad = (value if value >= 0 else None for value in (spec.bos_id, spec.eos_id, spec.pad_id))
    return SpecialIds(bos, eos, pad)


def write_tokenizer(model: bytes, folder: Path, *, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and tokenizer.model into `folder`.

    The special tokens' own text ("</s>") is read as the token, as Hugging Face users expect; sentencepiece reads it
    as text. So is the literal text "<0x0A>" by a unigram model (not BPE). No token is added to the begin or end of
    a text, as in sentencepiece's `encode`.

    Args:
        model: content of a sentencepiece model file, of kind BPE or unigram.
        max_length: tokens that the language model is meant for.

    Raises:
        ConversionError: a kind of model that has no counterpart.
    """
    from transformers import PreTrainedTokenizerFast

    proto = _parse(model)
    tokens = [piece.piece for piece in proto.pieces]
    ids = special_ids(model)
    named = (("bos_token", ids.bos), ("eos_token", ids.eos), ("pad_token", ids.pad))
    special = {name: tokens[token] for name, token in named if token is not None}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(model),
        unk_token=tokens[proto.trainer_spec.unk_id],
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        **special,
    )
    tokenizer.save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(model)


def build_tokenizer(model: bytes) -> Any:
    """The `tokenizers.Tokenizer` that encodes as the sentencepiece model does."""
    from tokenizers import Tokenizer

    proto = _parse(model)
    tokenizer = Tokenizer(_core(proto))
    spec = proto.normalizer_spec
    tokenizer.normalizer = _normalizer(spec)
    user_defined = [piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED]
    if user_defined:
        tokenizer.pre_tokenizer = _isolate(user_defined)
    tokenizer.decoder = _decoder(dummy_prefix=spec.add_dummy_prefix)
    return tokenizer


def check_tokenizer(folder: Path, encode: Callable[[str], list[int]], *, texts: Iterable[str] = PROBES) -> None:
    """Compare the tokenizer in `folder`, loaded as a user would, with sentencepiece's `encode`.

    Raises:
        ConversionError: names the first text whose ids differ.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in texts:
        expected, got = encode(text), tokenizer(text, add_special_tokens=False)["input_ids"]
        if list(got) != list(expected):
            raise ConversionError(
                f"the Hugging Face tokenizer gives other ids than sentencepiece for {text!r}",
                got=got,
                allowed=expected,
                fix="export without a tokenizer and use tokenizer.model with sentencepiece",
            )


def _parse(model: bytes) -> Any:
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception as error:
        raise ConversionError("the tokenizer is no sentencepiece model") from error
    return proto


def _core(proto: Any) -> Any:
    from tokenizers.models import BPE, Unigram

    spec = proto.trainer_spec
    if spec.model_type == _UNIGRAM:
        vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
        return Unigram(vocabulary, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
    if spec.model_type != _BPE:
        raise ConversionError("only sentencepiece models of kind bpe and unigram can be exported", got=spec.model_type)
    return BPE(
        vocab={piece.piece: index for index, piece in enumerate(proto.pieces)},
        merges=_merges(proto),
        unk_token=proto.pieces[spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
        ignore_merges=any(piece.type == _USER_DEFINED for piece in proto.pieces),
    )


def _merges(proto: Any) -> list[tuple[str, str]]:
    """Every way to make a piece of two, best piece first: sentencepiece merges whatever pair makes a known piece."""
    known = {piece.piece for piece in proto.pieces if piece.type == _NORMAL}
    ranked = sorted((p for p in proto.pieces if p.type == _NORMAL), key=lambda piece: -piece.score)
    splits = ((p.piece[:cut], p.piece[cut:]) for p in ranked for cut in range(1, len(p.piece)))
    return [(left, right) for left, right in splits if left in known and right in known]


def _normalizer(spec: Any) -> Any:
    """sentencepiece's order: character map, surplus spaces, dummy prefix, escape of spaces."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    if spec.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)


def _isolate(pieces: list[str]) -> Any:
    """User-defined pieces are never merged with their neighbours; of several that fit, the longest wins."""
    from tokenizers import Regex, pre_tokenizers

    pattern = "|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _decoder(*, dummy_prefix: bool) -> Any:
    from tokenizers import decoders

    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if dummy_prefix:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    return decoders.Sequence(steps)
