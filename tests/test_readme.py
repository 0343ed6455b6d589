"""Figures in the README are those of the committed row, and its commands exist."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from loco_train.config.load import load_run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ROW = json.loads((ROOT / "docs/results/quickstart.json").read_text())


def figure(label: str) -> list[float]:
    line = next(line for line in README.splitlines() if line.startswith(f"| {label}"))
    return [float(text.replace(",", "")) for text in re.findall(r"[\d,]*\d\.?\d*", line.removeprefix(f"| {label}"))]


def test_the_table_is_the_row():
    assert figure("held-out loss, before") == [round(ROW["heldout_loss_before"], 2), round(ROW["perplexity_before"])]
    after = [ROW["rounds"], round(ROW["heldout_loss_after"], 2), round(ROW["perplexity_after"], 1)]
    assert figure("held-out loss, consensus after") == after
    assert figure("each island before merging") == [round(loss, 2) for loss in ROW["heldout_loss_islands"]]
    assert figure("the export in transformers") == [round(ROW["heldout_loss_transformers"], 2)]
    assert figure("tokens") == [ROW["tokens"], round(ROW["tokens_per_second"])]
    times_less = ROW["bytes_data_parallel"] / ROW["bytes_between_islands"]
    assert figure("sent between islands") == [round(ROW["bytes_between_islands"] / 1e6, 1), round(times_less)]
    assert figure("time in inner steps") == [round(100 * ROW["compute_utilization"])]
    assert f"in {ROW['seconds_with_installation']:.0f} seconds" in README


def test_every_loco_command_in_it_exists():
    commands = set(re.findall(r"^\s+loco (\w+)", README, flags=re.M)) | {"train"}
    help_text = subprocess.run(
        [sys.executable, "-m", "loco_train.cli.main", "--help"], check=False, capture_output=True, text=True
    )
    assert help_text.returncode == 0
    for command in commands:
        assert re.search(rf"\b{command}\b", help_text.stdout), command


def test_every_file_and_folder_it_links_to_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r"^\s+\./(\S+)", README, flags=re.M)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_runs_it_starts_are_sound(tmp_path):
    """The cluster command with its overrides, and the YAML of a run of one's own."""
    command = re.search(r"cli\.main train --run (\S+) \\\n\s+(.*)", README)
    assert load_run(command[1], command[2].split()).config.parallel.data == 16
    (tmp_path / "mine.yaml").write_text(textwrap.dedent(README.split("A run, `mine.yaml`:")[1].split("Then:")[0]))
    assert load_run(tmp_path / "mine.yaml").config.islands.count == 4
