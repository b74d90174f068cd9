"""A folder with small inputs, and two ways to call remat in it: in this process, and as users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

LAYERS, ROWS, WIDTH = 6, 512, 64


@dataclass(frozen=True)
class Result:
    """What a call left: exit status, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The text of the ``error:`` line; fails when there is no such line or a traceback."""
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("error: ")

    @property
    def hint(self) -> str:
        """The text of the ``hint:`` line."""
        return next(line for line in self.err.splitlines() if line.startswith("hint: ")).removeprefix("hint: ")

    @property
    def json(self) -> dict:
        return json.loads(self.out)


Remat = Callable[..., Result]


def chain_model(layers: int = LAYERS, *, rows: int | str = ROWS, name: str = "chain") -> onnx.ModelProto:
    """tanh(h W) `layers` times, then a walk back that reads every activation: store-all keeps them all."""
    nodes, h = [], "x"
    for k in range(layers):
        nodes.append(helper.make_node("MatMul", [h, "W"], [f"a{k}"], f"mul{k}"))
        nodes.append(helper.make_node("Tanh", [f"a{k}"], [f"h{k}"], f"tanh{k}"))
        h = f"h{k}"
    gradient = h
    for k in reversed(range(layers)):
        nodes.append(helper.make_node("Sub", [gradient, f"h{k}"], [f"d{k}"], f"sub{k}"))
        nodes.append(helper.make_node("MatMul", [f"d{k}", "W"], [f"g{k}"], f"back{k}"))
        gradient = f"g{k}"
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) / 8
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, WIDTH])
    y = helper.make_tensor_value_info(gradient, TensorProto.FLOAT, [rows, WIDTH])
    graph = helper.make_graph(nodes, name, [x], [y], [numpy_helper.from_array(weight, "W")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def chain_problem(layers: int = 4) -> dict:
    """A problem file: a unit-cost chain f0..fn, then b_n..b0 where b_k reads f_k and its forerunner."""
    nodes = [
        {"name": f"f{k}", "cost": 1, "out": [1], "deps": [[k - 1, 0]] if k else [], "ws": 0, "keep": False}
        for k in range(layers)
    ]
    for k in reversed(range(layers)):
        deps = [[k, 0]] + ([[len(nodes) - 1, 0]] if k < layers - 1 else [])
        nodes.append({"name": f"b{k}", "cost": 1, "out": [1], "deps": deps, "ws": 0, "keep": k == 0})
    return {
        "schema": "remat-instance/1",
        "name": "chain",
        "fixed_bytes": 0,
        "batch": 1,
        "meta": {},
        "nodes": nodes,
    }


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REMAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)


def invoke(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """Call remat in this process, in the current folder."""
    from remat_cli.cli.main import cli

    done = CliRunner().invoke(cli, [str(arg) for arg in args], env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return Result(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx, dynamic.onnx, other.onnx, feeds.npz, problem.json, and what remat makes of them once:
    model.profile.json, model.plan.json (60 %), loose.plan.json (recomputes, though the budget would do without),
    full.plan.json (store-all), problem.plan.json."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.onnx").write_bytes(chain_model().SerializeToString())
    (folder / "dynamic.onnx").write_bytes(chain_model(rows="batch").SerializeToString())
    (folder / "other.onnx").write_bytes(chain_model(LAYERS - 1).SerializeToString())
    (folder / "problem.json").write_text(json.dumps(chain_problem()))
    np.savez(folder / "feeds.npz", x=np.ones((ROWS, WIDTH), np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for call in (
            ("profile", "model.onnx"),
            ("solve", "model.onnx", "--budget", "60%", "--profile", "model.profile.json"),
            ("solve", "model.onnx", "--budget", "100%", "--method", "store-all", "-o", "full.plan.json"),
            ("solve", "model.onnx", "--budget", "100%", "--method", "chen-sqrt", "-o", "loose.plan.json"),
            ("solve", "problem.json", "--budget", "4"),
        ):
            done = invoke(*call)
            assert done.code == 0, done.err
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with copies of all that `made` has."""
    monkeypatch.chdir(tmp_path)
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def remat(folder: Path) -> Remat:
    """Call remat in this process."""
    return invoke


@pytest.fixture
def remat_process(bare: Path) -> Remat:
    """Call remat as its own process, through the console entry point."""

    def call(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
        script = "from remat_cli.cli.main import main; main()"
        command = [sys.executable, "-c", script, *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})
        return Result(done.returncode, done.stdout, done.stderr)

    return call
