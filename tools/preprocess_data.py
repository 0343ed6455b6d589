#!/usr/bin/env python3
"""Text to Megatron indexed datasets, with the arguments of Megatron-LM's tools/preprocess_data.py.

Writes `<output-prefix>_<key>_document.bin` and `.idx` for each JSON key, as Megatron-LM names them, and a card beside.
"""

from __future__ import annotations

import argparse
import glob
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loco_train.data.build import build_dataset
from loco_train.data.readers import read_documents
from loco_train.data.tokenizer import Tokenizer
from loco_train.errors import DataError, LocoError

_TOKENIZER_TYPES = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")


def main(arguments: list[str] | None = None) -> int:
    """Exit code; errors for the user go to the error stream."""
    options = _parser().parse_args(arguments)
    try:
        inputs = _inputs(options.input)
        tokenizer = Tokenizer(options.tokenizer_model)
        for key in options.json_keys:
            _build(inputs, key, tokenizer, options)
    except LocoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _build(inputs: list[Path], key: str, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    prefix = Path(f"{options.output_prefix}_{key}_document")
    card = build_dataset(
        read_documents(inputs, text_key=key),
        prefix,
        tokenizer,
        append_eos=options.append_eod,
        overwrite=True,
        threads=options.workers,
        on_document=_logger(options.log_interval),
    )
    print(f"{prefix}: {card.documents} documents, {card.tokens} tokens", file=sys.stderr)


def _inputs(pattern: str) -> list[Path]:
    found = [Path(name) for name in sorted(glob.glob(pattern))]
    if not found:
        raise DataError(f"no input file: {pattern}", fix="check --input; it may hold wildcards")
    return found


def _logger(interval: int) -> Callable[[int], None]:
    begin = time.perf_counter()

    def log(documents: int) -> None:
        if documents % interval == 0:
            rate = documents / (time.perf_counter() - begin)
            print(f"Processed {documents} documents ({rate:.0f} docs/s).", file=sys.stderr)

    return log


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="jsonl (also .gz, .zst), txt or parquet; may hold wildcards")
    parser.add_argument("--output-prefix", required=True, help="path of the output without its suffix")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="keys to extract, a dataset each")
    parser.add_argument("--tokenizer-type", required=True, choices=_TOKENIZER_TYPES, help="kind of tokenizer")
    parser.add_argument("--tokenizer-model", required=True, help="sentencepiece model file")
    parser.add_argument("--append-eod", action="store_true", help="end each document with the end-of-text token")
    parser.add_argument("--workers", type=_positive, help="threads of the tokenizer; default: one a core")
    parser.add_argument("--log-interval", type=_positive, default=1000, help="documents between progress lines")
    parser.add_argument("--dataset-impl", choices=["mmap"], default="mmap", help="the only kind there is")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
