"""SIGKILL at any moment of a save: the newest checkpoint is always whole, and the next save works."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from loco_train.checkpoint import IslandParameters, clean_stale, committed_steps, open_step, save_checkpoint
from loco_train.checkpoint.steps import list_steps
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model

# For each line on its input, forks a process that saves for ever from that step on, at each step twice, so that the
# replacement of a checkpoint is hit too; it says when a save begins and when it is done. Forked, because importing
# takes a hundred times as long as saving. Parameters of a step are known from its number.
PROGRAM = """
import os, sys
from pathlib import Path
import torch
from loco_train.checkpoint import retain, save_checkpoint
from loco_train.testing.synthetic import cut, make_header, random_parameters, tiny_model

torch.set_num_threads(1)
folder = Path(sys.argv[1])

def save_for_ever(first):
    print("pid", os.getpid(), flush=True)
    model = tiny_model(layers=1)
    for turn in range(2 * first, 10**6):
        step = turn // 2
        content = cut(random_parameters(model, seed=step), tensor=1, data=1)[0]
        header = make_header(model, step=step)
        print("begin", step, flush=True)
        save_checkpoint(folder, header=header, content=content, attachments={"config.yaml": b"x"})
        retain(folder, keep_last=2)
        print("done", step, flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        save_for_ever(int(line))
    os.waitpid(child, 0)
    print("dead", 0, flush=True)
"""
KILLS = 40


@pytest.fixture
def checkpoints():
    """A folder in memory, where the machine has one: on a busy disk a killed process ends only with its fsync, minutes
    later, and SIGKILL, which loses nothing that was written, is the same in both."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def saver(checkpoints):
    """The program above, saving into that folder."""
    command = [sys.executable, "-c", PROGRAM, str(checkpoints)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait()


def save_and_kill(saver, *, first: int, saves: int, seconds: float) -> int:
    """Start saving at step `first`, kill `seconds` after the begin of the given save; the last step reported done."""
    print(first, file=saver.stdin, flush=True)
    pid, done = 0, 0
    for line in saver.stdout:
        word, number = line.split()
        pid = int(number) if word == "pid" else pid
        done = int(number) if word == "done" else done
        saves -= word == "begin"
        if word == "begin" and saves == 0:
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
        if word == "dead":
            return done
    raise AssertionError("the saving program ended")


def test_kills_in_the_middle_of_saves(checkpoints, saver):
    model = tiny_model(layers=1)
    # One save without a kill, to know how long one takes on this machine.
    content = cut(random_parameters(model, seed=1), tensor=1, data=1)[0]
    begin = time.monotonic()
    save_checkpoint(checkpoints, header=make_header(model, step=1), content=content)
    save_seconds = time.monotonic() - begin
    rng = random.Random(0)
    newest, inside = 1, 0
    for _ in range(KILLS):
        seconds = rng.uniform(0, save_seconds)
        done = save_and_kill(saver, first=newest + 1, saves=rng.randrange(1, 5), seconds=seconds)
        inside += any(entry.name.startswith(".") for entry in checkpoints.iterdir())
        newest = check_whole(checkpoints, model, at_least=max(done, newest))
    assert inside >= KILLS // 4, f"only {inside} kills left anything behind: the others fell between saves"
    assert newest > 5


def check_whole(checkpoints: Path, model, *, at_least: int) -> int:
    """The newest checkpoint, after the clean-up of a start, is whole and not older than `at_least`; its step."""
    clean_stale(checkpoints)
    assert [e.name for e in checkpoints.iterdir() if e.name.startswith(".")] == []
    for step in committed_steps(checkpoints):
        open_step(checkpoints, step=step).verify()
    newest = open_step(checkpoints)
    step = newest.manifest.header.step
    assert step >= at_least
    whole, values = IslandParameters(newest), random_parameters(model, seed=step)
    assert all(torch.equal(whole.read(name), value) for name, value in values.items())
    assert len(list_steps(checkpoints)) <= 4  # two kept, one not yet removed, one without its pointer yet
    return step
