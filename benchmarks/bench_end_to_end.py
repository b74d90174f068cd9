"""The main job, measured: planning time of a large graph, memory of `solve` against weights, replay against plain.

Writes nothing; prints Markdown tables that benchmarks/RESULTS.md holds for one machine. Replay figures come from
`remat run --compare`, which runs the plan and a plain onnxruntime session side by side.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parent.parent))

from plans.graphs import mlp_train
from remat_cli.units import format_bytes, format_ns

REMAT = Path(sys.executable).parent / "remat"
MODELS = Path(__file__).parent / "models"
BUDGETS = ("100%", "80%", "60%", "min")


def remat(*args: object) -> dict[str, Any]:
    """One command's JSON; the benchmark ends when it fails."""
    words = [REMAT, *map(str, args), "--format", "json", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def seconds_of(*args: object) -> float:
    """Wall time of one whole process."""
    started = time.monotonic()
    remat(*args)
    return time.monotonic() - started


def planning(folder: Path) -> None:
    """Load, size, solve with `greedy` and write the plan of a training step with more than 1,700 nodes."""
    depth = 170
    model = folder / "deep.onnx"
    onnx.save(mlp_train(depth=depth, batch=256, width=64), model)
    nodes = remat("info", model)["nodes"]
    print("| budget | nodes | `remat solve --method greedy`, whole process |\n|---|---|---|")
    for budget in ("90%", "70%", "50%"):
        plan = folder / f"deep.{budget[:-1]}.json"
        took = seconds_of("solve", model, "--budget", budget, "--method", "greedy", "-o", plan)
        print(f"| {budget} | {nodes} | {took:.1f} s |", flush=True)


def memory_of_solve(folder: Path) -> None:
    """Peak memory of `remat solve` for one graph with weights of 1 MB and of 2.5 GB (a sparse file)."""
    print("\n| weights | peak memory of `remat solve` |\n|---|---|")
    for megabytes in (1, 2500):
        rows = megabytes * 10**6 // 4 // 8
        model = _external(folder / f"weights{megabytes}", rows)
        words = [REMAT, "solve", model, "--budget", "100%", "-o", folder / f"w{megabytes}.plan.json", "--quiet"]
        pid = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(pid.pid, 0)
        if status:
            sys.exit("remat solve failed")
        print(f"| {format_bytes(megabytes * 10**6)} | {format_bytes(_rss(usage))} |", flush=True)


def _rss(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _external(folder: Path, rows: int) -> Path:
    """x[1, 8] @ W[8, rows] with W in a sparse external file."""
    folder.mkdir()
    with (folder / "w.bin").open("wb") as file:
        file.truncate(rows * 8 * 4)
    weight = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[8, rows], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(rows * 8 * 4))):
        weight.external_data.add(key=key, value=value)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "wide",
        [info("x", TensorProto.FLOAT, [1, 8])],
        [info("y", TensorProto.FLOAT, [1, rows])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def replay(folder: Path) -> None:
    """Plans of the U-Net training step against a plain session: peaks and step times side by side."""
    model, feeds = MODELS / "unet.train.onnx", MODELS / "unet.feeds.npz"
    profile = folder / "unet.profile.json"
    remat("profile", model, "--inputs", feeds, "-o", profile)
    print("\n| budget | peak: budget / measured | plain session's peak | predicted cost | step / plain | identical |")
    print("|---|---|---|---|---|---|")
    for budget in BUDGETS:
        plan = folder / f"unet.{budget.rstrip('%')}.plan.json"
        remat("solve", model, "--budget", budget, "--profile", profile, "-o", plan)
        predicted = json.loads(plan.read_text("utf-8"))["predicted"]
        ratios, run = [], {}
        for _ in range(3):
            run = remat("run", plan, "--model", model, "--inputs", feeds, "--iterations", 5, "--compare")
            ratios.append(run["compare"]["time_ratio"])
        peak, compare = run["peak_bytes"], run["compare"]
        print(
            f"| {budget} | {format_bytes(peak['budget'])} / {format_bytes(peak['measured'])} "
            f"| {format_bytes(compare['plain_peak_bytes'])} "
            f"| {predicted['compute_ns'] / predicted['store_all_ns']:.3f} "
            f"| {np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
            f"{format_ns(run['step_ns']['median'])} | {'yes' if compare['identical'] else 'NO'} |",
            flush=True,
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planning(folder)
        memory_of_solve(folder)
        replay(folder)


if __name__ == "__main__":
    main()
