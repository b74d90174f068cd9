"""What `run` asks of a child process, and what the child answers.

The job is a pickle, as it carries a loaded graph; it never leaves the private temporary folder that the parent
makes for it. The answer is JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from remat_cli.execute.feed_file import Fed

if TYPE_CHECKING:
    from remat_cli.execute.program import Program
    from remat_cli.model.graph import Graph
    from remat_cli.ort_session import Device

Role = Literal["arena", "plain", "default"]

JOB_FILE = "job.pickle"
REPORT_FILE = "report.json"
PROGRESS_FILE = "progress"
PROGRESS_BYTES = 1024


@dataclass(frozen=True)
class Job:
    """Run `graph` for `iterations`, by `program` in the arena engine or, for the other roles, in one session.

    `feeds`: what the file `feed_file` holds (`write_feeds`). `seed`: of random operators that have none. `digests`:
    tell the digest of every output of every iteration. `keep`: write the outputs of the first and the last iteration
    to the job's folder.
    """

    role: Role
    graph: Graph
    program: Program | None
    device: Device
    threads: int
    feed_file: Path
    feeds: tuple[Fed, ...]
    seed: int
    iterations: int
    digests: bool
    keep: bool


class Part(msgspec.Struct, frozen=True):
    """One tensor in a file of outputs, `length` bytes long. See `RawTensor`."""

    elem_type: int
    shape: tuple[int, ...]
    length: int


class KeptOutput(msgspec.Struct, frozen=True):
    """One graph output in the job's folder: its tensors lie one after the other in `file`."""

    name: str
    container: Literal["tensor", "sequence", "optional"]
    file: str
    parts: tuple[Part, ...]


class ChildError(msgspec.Struct, frozen=True):
    """An expected error of the child. `kind`: name of its class in `remat_cli.errors`."""

    kind: str
    message: str
    hint: str | None


class Report(msgspec.Struct, frozen=True):
    """What a child found.

    `step_ns`: of each iteration, then of further ones that were run for timing alone. `peak_bytes`: the most memory
    above what the process had before weights, inputs and steps; None where nothing measures it.
    `digests`: one map output -> digest an iteration.
    """

    step_ns: tuple[int, ...] = ()
    peak_bytes: int | None = None
    measured_by: str = ""
    digests: tuple[dict[str, str], ...] = ()
    first: tuple[KeptOutput, ...] = ()
    last: tuple[KeptOutput, ...] = ()
    error: ChildError | None = None
