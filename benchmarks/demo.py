"""`make demo`: one training step of a U-Net, profiled, solved at 60 % of its memory, checked and run.

Every line that begins with `$` is a command that you can type. The model is a training graph (forward, loss, backward
and SGD update) of 128x128 images; its weights are inputs, and get seeded values.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from remat_cli.units import format_bytes, format_ns

REMAT = Path(sys.executable).parent / "remat"
MODELS = Path(__file__).parent / "models"
MODEL, FEEDS = MODELS / "unet.train.onnx", MODELS / "unet.feeds.npz"


def remat(*args: object, into: Path | None = None) -> None:
    """Show and run one command; its stdout goes to the file `into`, if given. Ends the demo when it fails."""
    words = [str(arg) if not isinstance(arg, Path) else os.path.relpath(arg) for arg in args]
    print(f"\n$ remat {' '.join(words)}" + (f" > {os.path.relpath(into)}" if into else ""), flush=True)
    done = subprocess.run([REMAT, *words], stdout=subprocess.PIPE if into else None, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    if into:
        into.write_bytes(done.stdout)


def table(plan: dict, run: dict) -> str:
    """The figures that matter, from the plan's file and the JSON of ``remat run``."""
    predicted, peak, compare = plan["predicted"], run["peak_bytes"], run["compare"]
    store_all = predicted["store_all_peak_bytes"]
    rows = [
        ("budget", format_bytes(plan["budget_bytes"]), ""),
        ("store-all peak", format_bytes(store_all), "what the graph needs when nothing is recomputed"),
        ("predicted peak", format_bytes(peak["predicted"]), f"{peak['predicted'] / store_all:.1%} of store-all"),
        ("measured peak", _measured(peak["measured"]), peak["measured_by"]),
        ("plain session's peak", _measured(compare["plain_peak_bytes"]), "the same graph in one onnxruntime session"),
        (
            "predicted overhead",
            f"{predicted['compute_ns'] / predicted['store_all_ns'] - 1:+.1%}",
            f"{predicted['recomputed']} recomputes beside the {len(plan['nodes'])} nodes",
        ),
        ("measured overhead", f"{compare['time_ratio'] - 1:+.1%}", f"{format_ns(run['step_ns']['median'])} a step"),
        ("identical", "yes" if compare["identical"] else "NO", "every output, bit for bit, against the plain session"),
    ]
    return "\n".join(f"  {name:<22}{value:>12}   {note}".rstrip() for name, value, note in rows)


def _measured(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the profile, plan and results")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    profile, plan, result = out / "unet.profile.json", out / "unet.plan.json", out / "run.json"
    remat("profile", MODEL, "--inputs", FEEDS, "-o", profile)
    remat("solve", MODEL, "--budget", "60%", "--profile", profile, "-o", plan)
    remat("check", plan, "--model", MODEL)
    remat(
        "run",
        plan,
        "--model",
        MODEL,
        "--inputs",
        FEEDS,
        "--iterations",
        5,
        "--compare",
        "--format",
        "json",
        into=result,
    )
    print("\n" + table(json.loads(plan.read_text("utf-8")), json.loads(result.read_text("utf-8"))))


if __name__ == "__main__":
    main()
