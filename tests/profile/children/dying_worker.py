"""A worker that dies as a crash of the runtime would: on every node, or on synthetic values only."""

from __future__ import annotations

import os
import pickle
import signal
import sys

from remat_cli.profile.worker import Job, measure

HOW = os.environ["DYING_WORKER"]


def main() -> None:
    job: Job = pickle.loads(sys.stdin.buffer.read())
    node = job.graph.nodes[-1].id

    def send(*message: object) -> None:
        import json

        print(json.dumps(message), flush=True)
        if message == ("begin", node) and (HOW == "always" or node not in job.fragile):
            os.kill(os.getpid(), signal.SIGSEGV)

    if HOW == "python":
        raise ValueError("a fault of our own")
    measure(job, send)


main()
