"""Quantities: read from what people write, printed so that they are read back as the same number."""

import pytest

from loco_train.units import Bandwidth, Bytes, Duration, format_bytes


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Bytes, "64MiB", 64 * 2**20),
        (Bytes, "5GB", 5e9),
        (Bytes, "12", 12),
        (Bytes, 12, 12),
        (Duration, "90s", 90),
        (Duration, "1.5 min", 90),
        (Duration, "250ms", 0.25),
        (Duration, "1e3", 1000),
        (Bandwidth, "200Mbit/s", 2e8),
    ],
)
def test_what_people_write(kind, text, value):
    parsed = kind.parse(text)
    assert parsed == pytest.approx(value, rel=1e-15)
    assert type(parsed) is kind


@pytest.mark.parametrize("wrong", ["", "MiB", "3 parsec", "-3s", "1,5s", True, None, [1], "nan", "inf", "1 s s"])
def test_what_is_no_quantity(wrong):
    with pytest.raises(ValueError, match="not a quantity: .*; write a number with a unit: ms, s, min, h, d"):
        Duration.parse(wrong)


@pytest.mark.parametrize("kind", [Bytes, Duration, Bandwidth])
@pytest.mark.parametrize("value", [0, 1, 0.1, 1 / 3, 1234567.891, 2**31 + 1, 12345678901, 1e-9, 6.02e23, 64 * 2**20])
def test_printed_and_read_back(kind, value):
    assert kind.parse(str(kind(value))) == value


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Bytes(64 * 2**20), "64MiB"),
        (Bytes(1000), "1000B"),
        (Bytes(0), "0B"),
        (Duration(300), "300s"),
        (Duration(0.25), "0.25s"),
        (Bandwidth(2e8), "200000000bit/s"),
    ],
)
def test_printed(quantity, text):
    assert str(quantity) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (1_540_000, "1.54 MB"), (2.5e12, "2.50 TB")]
)
def test_sizes_for_people(count, text):
    assert format_bytes(count) == text
