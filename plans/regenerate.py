"""Golden plans: `make plans` writes them, a test checks that writing them again gives the same bytes.

Costs come from the built-in V100 cost model, so nothing here is measured and any machine gives the same plans.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx

from plans.graphs import GRAPHS
from remat_cli.pipeline import CompileRequest, compile_plan, costs_from_model, load_source
from remat_cli.plan.files import dump_plan
from remat_cli.units import parse_size

FOLDER = Path(__file__).parent
COST_MODEL = "v100-16gb"
# (graph, method, budget): every method that small graphs allow, and one plan for each feature of the format.
CASES = (
    ("equal_branches", "auto", "60%"),
    ("equal_branches", "store-all", "100%"),
    ("mlp_dropout", "greedy", "80%"),
    ("mlp_train", "auto", "60%"),
    ("mlp_train", "checkmate", "70%"),
    ("mlp_train", "chen-sqrt", "90%"),
    ("mlp_train", "greedy", "70%"),
    ("unet_forward", "auto", "100%"),
)


def golden_name(graph: str, method: str, budget: str) -> str:
    """File name of one golden plan."""
    return f"{graph}.{method}.{budget.rstrip('%')}.plan.json"


def golden_plan(graph: str, method: str, budget: str) -> bytes:
    """The bytes of one golden plan, compiled anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{graph}.onnx"
        onnx.save(GRAPHS[graph](), path)
        source = load_source(path)
        costs = costs_from_model(source, COST_MODEL)
        return dump_plan(compile_plan(CompileRequest(source, costs, parse_size(budget), method, effort="quick")))


def main() -> None:
    """Write every golden plan beside this file."""
    for case in CASES:
        target = FOLDER / golden_name(*case)
        target.write_bytes(golden_plan(*case))
        print(f"wrote {target.name}")


if __name__ == "__main__":
    main()
