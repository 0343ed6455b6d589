"""A stand-in for `loco train`: what the launcher sees of an island, without a model.

python stand_in.py FOLDER INDEX ACTION [RENDEZVOUS]: writes FOLDER/INDEX.RANK.json (its pid, parent, environment and
arguments), then does ACTION: an exit code (after a connection to RENDEZVOUS), `sleep`, `stubborn` (sleeps, deaf to
SIGTERM) or `fail-with-event` (ends as an island that tells why).
"""

import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

from loco_train.launch.processes import die_with_parent
from loco_train.telemetry.events import EvaluationDone, RoundDone, RunFailed, StepDone


def main() -> None:
    die_with_parent()
    folder, index, action = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if action == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note = {"pid": os.getpid(), "parent": os.getppid(), "variables": dict(os.environ), "arguments": sys.argv}
    path = folder / f"{index}.{os.environ.get('RANK', '0')}.json"
    path.with_suffix(".part").write_text(json.dumps(note))
    os.replace(path.with_suffix(".part"), path)
    if action in ("sleep", "stubborn"):
        time.sleep(120)
    if action == "fail-with-event":
        _fail(folder / "run" / "islands" / str(index))
    if len(sys.argv) > 4:
        host, port = sys.argv[4].rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=10).close()
    print(f"island {index} ends with {action}")
    sys.exit(int(action))


def _fail(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    events = [
        StepDone(1, 0, loss=4.0, lr=0.1, grad_norm=1.0, tokens=8, tokens_per_second=100.0, step_seconds=0.1),
        RoundDone(1, 1, 1.0, 0.25, 0.1, bytes_sent=4, socket_bytes_sent=None, pseudo_gradient_norm=1.0, spread_l2=0.0),
        EvaluationDone(1, 1, scope="consensus", loss=3.5, perplexity=33.12, seconds=0.1),
        RunFailed(1, 1, error="NonFinite", message="the gradient is not finite", exit_code=8),
    ]
    with (folder / "events.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps({"type": type(event).__name__, "time": time.time(), **asdict(event)}) + "\n")
    sys.exit(1)


main()
