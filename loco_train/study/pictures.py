"""Pictures of a study's parts: loss over the number of islands, or bars of it where that is one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loco_train.study.findings import Found, baseline_of, differences
from loco_train.study.settings import Part

# Without it every drawing gives the same picture other names inside, and a diff.
matplotlib.rcParams["svg.hashsalt"] = "study"


def draw(part: Part, found: Sequence[Found], path: Path) -> bool:
    """Write an SVG; False where there is nothing to draw."""
    shown = [each for each in found if not math.isinf(each.spread("loss").mean)]
    if not shown:
        return False
    figure = Figure(figsize=(7.5, 1.6 + 0.26 * len(shown)) if not part.growth else (6.5, 4.2), layout="constrained")
    axes = figure.add_subplot(title=part.title)
    if part.growth:
        _over_islands(axes, shown)
    else:
        _bars(axes, part, shown)
    figure.savefig(path, metadata={"Date": None})
    return True


def _over_islands(axes: Axes, found: Sequence[Found]) -> None:
    for variant in dict.fromkeys(each.point.variant for each in found):
        points = sorted((e for e in found if e.point.variant == variant), key=lambda e: e.point.islands)
        islands, losses = [e.point.islands for e in points], [e.spread("loss") for e in points]
        if len(points) == 1:  # a level to compare with: its one marker would lie under another's
            axes.axhline(losses[0].mean, color="0.5", linestyle="--", label=f"{variant}, {islands[0]} island")
            continue
        axes.errorbar(
            islands, [s.mean for s in losses], [s.deviation for s in losses], marker="o", capsize=3, label=variant
        )
    axes.set(xscale="log", xlabel="islands", ylabel="held-out loss, nats a byte")
    counts = sorted({each.point.islands for each in found})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.legend()


def _bars(axes: Axes, part: Part, found: Sequence[Found]) -> None:
    """Differences from the baseline, a dot for each seed: seeds differ more than methods do."""
    shown = [(each, base) for each in found if (base := baseline_of(part, found, each)) not in (None, each)]
    for place, (each, base) in enumerate(shown):
        assert base is not None
        values = [value for value in differences(each, base) if not math.isinf(value)]
        axes.barh(place, sum(values) / max(1, len(values)), color="0.8")
        axes.plot(values, [place] * len(values), "k.", markersize=5)
    several = len({each.point.inner_steps for each in found}) > 1
    names = [f"{e.point.variant}{f', H = {e.point.inner_steps}' if several else ''}" for e, _ in shown]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"held-out loss less that of {part.baseline}, nats a byte; a dot for each seed")
