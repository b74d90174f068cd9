"""One direction of flow: which package may import which, read from the source, and what `remat --help` loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import remat_cli

PACKAGE = Path(remat_cli.__file__).parent
# Leaves in order: each may import those before it, and every package may import the first seven.
LEAVES = [
    "errors", "units", "reporter", "strict_json", "strict_yaml", "json_schema", "atomic",
    "problem", "memory", "ort_session", "device_memory", "problem_file",
]  # fmt: skip
COMMON = {*LEAVES[:7], "__version__"}
MAY_IMPORT = {
    "model": {"problem", "ort_session"},
    "autodiff": {"model"},
    "profile": {"problem", "model", "ort_session", "device_memory"},
    "solve": {"problem", "memory"},
    "plan": {"problem", "memory"},
    "execute": {"problem", "memory", "model", "ort_session", "device_memory", "plan"},
    "report": {"problem", "memory", "plan", "profile"},
}
PIPELINE = set(LEAVES) | set(MAY_IMPORT)
# Third-party packages with one owner.
OWNERS = {
    "ortools": {"solve"},
    "rich": {"cli"},
    "click": {"cli"},
    "plotly": {"report"},
    "yaml": {"strict_yaml"},
    "onnx": {"model", "autodiff", "profile", "execute", "cli"},
    "onnxruntime": {"ort_session", "model", "profile", "execute", "cli"},
}


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """(layer, path below the package, syntax tree) of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        yield relative.parts[0].removesuffix(".py"), str(relative), ast.parse(path.read_text("utf-8"))


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import anywhere in a module; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def allowed(layer: str) -> set[str]:
    if layer in LEAVES:
        return set(LEAVES[: LEAVES.index(layer)])
    if layer == "pipeline":
        return PIPELINE
    if layer == "cli":
        return PIPELINE | {"pipeline", "__version__"}
    return COMMON | MAY_IMPORT[layer] | {layer}


def test_imports_follow_the_layers() -> None:
    faults = []
    for layer, path, tree in modules():
        if layer == "__init__":
            continue
        for line, name in imports(tree):
            parts = name.split(".")
            if parts[0] == "remat_cli" and parts[1] not in allowed(layer) | {layer}:
                faults.append(f"remat_cli/{path}:{line} ({layer}) imports {name}")
    assert not faults, "\n".join(faults)


def test_third_party_packages_have_owners() -> None:
    faults = []
    for layer, path, tree in modules():
        for line, name in imports(tree):
            top = name.split(".")[0]
            assert top != "torch"
            if top in OWNERS and layer not in OWNERS[top]:
                faults.append(f"remat_cli/{path}:{line} ({layer}) imports {name}")
    assert not faults, "\n".join(faults)


def test_sessions_are_made_in_one_place() -> None:
    makers = {
        path
        for _, path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "InferenceSession"
    }
    assert makers == {"ort_session.py"}


def test_library_code_never_prints() -> None:
    faults = [
        f"remat_cli/{path}:{node.lineno}"
        for layer, path, tree in modules()
        if layer != "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not faults


@pytest.mark.parametrize("args", [["--help"], ["solve", "--help"], ["run", "-h"], ["--version"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    script = (
        "import sys\n"
        "from remat_cli.cli.main import cli\n"
        f"try:\n    cli.main({args!r})\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'onnx', 'onnxruntime', 'ortools', 'numpy', 'plotly', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, sorted(heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "remat" in done.stdout
