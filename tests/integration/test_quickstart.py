"""The quickstart as shipped: what it promises is what it measures."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(900)
def test_quickstart_keeps_its_promises(tmp_path):
    settings = ["run_dir=run", "data.tokenizer=data/tokenizer.model", "data.train.0.path=data/corpus"]
    command = [sys.executable, "-m", "loco_train.cli.main", "quickstart", *settings]
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["rounds"] >= 8
    assert summary["islands"] == 2
    assert summary["heldout_loss_before"] - summary["heldout_loss_after"] >= 2.5
    assert abs(summary["heldout_loss_transformers"] - summary["heldout_loss_after"]) <= 0.01
    # DiLoCo sends once in 30 steps what data parallelism sends every step, both in fp32.
    assert summary["bytes_data_parallel"] / summary["bytes_between_islands"] == pytest.approx(30, rel=0.03)
    assert 0 < summary["compute_utilization"] <= 1
    assert summary["tokens"] == 2 * 10 * 30 * 16 * 128
    assert len(summary["samples"]) == 3
    assert all(sample["text"] for sample in summary["samples"])
    assert (tmp_path / summary["checkpoint"] / "manifest.json").is_file()
    assert (tmp_path / summary["hf_dir"] / "config.json").is_file()
    assert "Hugging Face folder" in done.stdout
