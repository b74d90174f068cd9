"""What the parent makes of a measuring process that dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from profile_models import load_text

from remat_cli.errors import DeviceError, InternalError
from remat_cli.model.graph import Graph
from remat_cli.ort_session import Device
from remat_cli.profile import supervise
from remat_cli.profile.supervise import Outcome, run_job
from remat_cli.profile.worker import Job
from remat_cli.reporter import Task

CHILDREN = Path(__file__).parent / "children"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return load_text(tmp_path, "g (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }")


def run_dying(graph: Graph, how: str, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    monkeypatch.setenv("PYTHONPATH", str(CHILDREN))
    monkeypatch.setenv("DYING_WORKER", how)
    monkeypatch.setattr(supervise, "_WORKER", "dying_worker")
    return run_job(Job("time", graph, Device(), 1, {}, 0), Task())


def test_a_node_that_kills_the_runtime_is_tried_on_real_values(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_dying(graph, "on synthetic values", monkeypatch)
    assert set(outcome.times) == {"a", "y"}


def test_a_node_that_always_kills_the_runtime_is_named(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"died \(SIGSEGV\) while Neg .* ran on cpu"):
        run_dying(graph, "always", monkeypatch)


def test_a_fault_of_the_child_is_not_blamed_on_a_node(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InternalError, match="exit status 1: ValueError: a fault of our own"):
        run_dying(graph, "python", monkeypatch)
