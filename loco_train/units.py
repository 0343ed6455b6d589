"""Quantities with units: `Bytes` ("64MiB"), `Duration` ("90s"), `Bandwidth` ("200Mbit/s").

Each is a plain number (bytes, seconds, bits per second) that remembers how to print itself and parses itself from
text, so that a setting is never a bare number of unknown unit.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

_QUANTITY = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*$")


class Quantity(float):
    """A non-negative number in a base unit, parsed from `<number><unit>`; a bare number is in the base unit."""

    units: ClassVar[dict[str, float]] = {}
    base_unit: ClassVar[str] = ""

    @classmethod
    def parse(cls, value: object) -> Quantity:
        """`value` (text or number) as this quantity; ValueError says which units exist."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"not a quantity: {value!r}; write a number with a unit: {', '.join(cls.units)}")
        match = _QUANTITY.match(str(value))
        if not match or (match[2] and match[2] not in cls.units):
            raise ValueError(f"not a quantity: {value!r}; write a number with a unit: {', '.join(cls.units)}")
        return cls(float(match[1]) * cls.units.get(match[2] or cls.base_unit, 1.0))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        serialize = core_schema.plain_serializer_function_ser_schema(str)
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=serialize)

    def __str__(self) -> str:
        # All digits: a saved setting must come back as the same number.
        return f"{float(self)!r}".removesuffix(".0") + self.base_unit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Bytes(Quantity):
    """A size in bytes."""

    base_unit = "B"
    units: ClassVar[dict[str, float]] = {
        "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
        "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    }  # fmt: skip

    def __str__(self) -> str:
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            if self >= self.units[unit] and float(self) % self.units[unit] == 0:
                return f"{float(self) / self.units[unit]:.0f}{unit}"
        return super().__str__()


class Duration(Quantity):
    """A time in seconds."""

    base_unit = "s"
    units: ClassVar[dict[str, float]] = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}


class Bandwidth(Quantity):
    """A rate in bits per second."""

    base_unit = "bit/s"
    units: ClassVar[dict[str, float]] = {
        "bit/s": 1, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9,
        "bps": 1, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9,
    }  # fmt: skip


def format_bytes(count: float) -> str:
    """A size for people: 1.5 GB."""
    for unit in ("TB", "GB", "MB", "kB"):
        if count >= Bytes.units[unit]:
            return f"{count / Bytes.units[unit]:.2f} {unit}"
    return f"{count:.0f} B"
