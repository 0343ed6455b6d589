"""SIGKILL at any moment of a save: the newest checkpoint is always whole, and the next save works."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from loco_train.checkpoint import IslandParameters, clean_stale, committed_steps, open_step, save_checkpoint
from loco_train.checkpoint.steps import POINTER, list_steps
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model

# Saves for ever, at each step twice, so that the replacement of a checkpoint is hit too; says when a save begins
# and when it is done. Parameters of a step are known from its number.
PROGRAM = """
import sys
from pathlib import Path
from loco_train.checkpoint import retain, save_checkpoint
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model

folder, first = Path(sys.argv[1]), int(sys.argv[2])
model = tiny_model(layers=1)
for turn in range(2 * first, 10**6):
    step = turn // 2
    content = cut(random_parameters(model, seed=step), tensor=1, data=1)[0]
    print("begin", step, flush=True)
    save_checkpoint(folder, header=make_header(model, step=step), content=content, attachments={"config.yaml": b"x"})
    retain(folder, keep_last=2)
    print("done", step, flush=True)
"""
KILLS = 20


def start(folder: Path, first: int) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(170)
def test_twenty_kills_in_the_middle_of_saves(tmp_path):
    model = tiny_model(layers=1)
    # One save without a kill, to know how long one takes on this machine.
    content = cut(random_parameters(model, seed=1), tensor=1, data=1)[0]
    begin = time.monotonic()
    save_checkpoint(tmp_path, header=make_header(model, step=1), content=content)
    save_seconds = time.monotonic() - begin
    rng = random.Random(0)
    newest, leftovers = 1, 0
    for _ in range(KILLS):
        process = start(tmp_path, newest + 1)
        done = newest
        saves_before = rng.randrange(1, 5)
        for line in process.stdout:
            word, step = line.split()
            done = int(step) if word == "done" else done
            saves_before -= word == "begin"
            if not saves_before:
                break
        time.sleep(rng.uniform(0, 1.2 * save_seconds))
        process.kill()
        rest = process.communicate()[0]
        done = max([done, *[int(line.split()[1]) for line in rest.splitlines() if line.startswith("done")]])
        leftovers += sum(1 for entry in tmp_path.iterdir() if entry.name.startswith("."))
        # What was reported as saved is there, whole; nothing older is given out for it.
        clean_stale(tmp_path)
        checkpoint = open_step(tmp_path)
        checkpoint.verify()
        newest = checkpoint.manifest.header.step
        assert newest >= done
        values = random_parameters(model, seed=newest)
        whole = IslandParameters(checkpoint)
        assert all(torch.equal(whole.read(name), value) for name, value in values.items())
        assert {e.name for e in tmp_path.iterdir() if e.name.startswith(".")} == set()
        for step in committed_steps(tmp_path):
            open_step(tmp_path, step=step).verify()
    assert leftovers > 0, "no kill fell inside a save: the test shows nothing"
    assert newest > 1
    assert len(list_steps(tmp_path)) <= 4
    assert (tmp_path / POINTER).is_file()
