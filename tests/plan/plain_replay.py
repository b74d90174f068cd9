"""A second replay, on the JSON document itself, that shares nothing with the package: the tests hold one against
the other."""

from __future__ import annotations

from typing import Any


def plain_replay(document: dict[str, Any]) -> tuple[int, int, int]:
    """(live bytes at the peak, nanoseconds, recomputes) of a plan; ValueError when a step is illegal."""
    size = {row[0]: row[1] for row in document["tensors"]}
    kind = {row[0]: row[2] for row in document["tensors"]}
    nodes = {row[0]: (row[2], row[3], row[4], row[5], row[6] if len(row) > 6 else []) for row in document["nodes"]}
    per_step = document["costs"]["workspace"] == "per step"
    made = {name for row in document["nodes"] for name in row[3]}
    state = {name: k.removeprefix("state of ") for name, k in kind.items() if k.startswith("state of ")}

    def storage(name: str) -> str:
        return kind[name].removeprefix("view of ") if kind[name].startswith("view of ") else name

    runs: dict[str, int] = {}
    live: set[str] = set()
    overwritten: set[str] = set()
    peak = cost = 0
    for action, target, *note in document["steps"]:
        if action == "free":
            live.remove(target) if target in live else _illegal(f"free {target}")
            continue
        inputs, outputs, nanoseconds, workspace, flags = nodes[target]
        for name in inputs:
            root = storage(name)
            if root in overwritten or (root in made and root not in live):
                _illegal(f"{target} reads {name}")
        updates = [state[name] for name in outputs if name in state]
        if target in runs and ("once" in flags or updates):
            _illegal(f"{target} twice")
        for resident in updates:
            late = [v for v, row in nodes.items() if v not in runs and v != target and resident in map(storage, row[0])]
            if late:
                _illegal(f"{target} before {late}")
        total = sum(size[name] for name in live) + sum(size[name] for name in outputs)
        if note and note[0]:
            taken = storage(note[0].removeprefix("in place of "))
            allowed = [storage(f.removeprefix("in place of ")) for f in flags if f != "once"]
            alone = [storage(name) for name in inputs].count(taken) == 1
            if taken not in allowed or not alone or outputs[0] in live or size[taken] != size[outputs[0]]:
                _illegal(f"{target} in place of {taken}")
            total -= size[taken]
            live.discard(taken)
        peak = max(peak, total + (workspace if per_step else 0))
        live.update(outputs)
        overwritten.update(updates)
        runs[target] = runs.get(target, 0) + 1
        cost += nanoseconds
    if set(runs) != set(nodes) or any(storage(o) in made and storage(o) not in live for o in document["outputs"]):
        _illegal("the end")
    return peak, cost, sum(runs.values()) - len(runs)


def _illegal(what: str) -> None:
    raise ValueError(what)
