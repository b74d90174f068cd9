"""Make the bodies of If, Loop and Scan such that onnxruntime takes them: it is stricter than many exporters.

Cases: nodes out of order; a body that reuses the name of an outer tensor; one that returns an outer tensor as it is;
two nodes with one name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx

from remat_cli.model.draft import Draft
from remat_cli.model.names import listed, quoted
from remat_cli.model.structure import sorted_nodes
from remat_cli.model.subgraphs import bodies, defined_names, rename_reads


def tidy_bodies(draft: Draft) -> None:
    """Mend every body in `draft`, nested ones included. Raises ModelError when nodes of a body form a cycle."""
    outer = {*draft.inputs, *draft.weights, *draft.constants, *(name for node in draft.nodes for name in node.output)}
    renamed: list[str] = []
    for node in draft.nodes:
        for body in bodies(node):
            _tidy(draft, body, outer, f"{draft.path}: inside {draft.label(node)}", renamed)
    if renamed:
        draft.notes.append(
            f"renamed inside bodies, since outer tensors have these names: {listed(map(quoted, renamed))}"
        )


def _tidy(draft: Draft, body: onnx.GraphProto, outer: Iterable[str], where: str, renamed: list[str]) -> None:
    for name in sorted(defined_names(body).intersection(outer)):
        _rename(body, name, draft.new_name(name))
        renamed.append(name)
    own = defined_names(body)
    _return_own_tensors(draft, body, own)
    order = sorted_nodes(body.node, where)
    if order != list(range(len(order))):
        nodes = [body.node[index] for index in order]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del body.node[:]
        body.node.extend(copies)
    _clear_repeated_names(body)
    for node in body.node:
        for inner in bodies(node):
            _tidy(draft, inner, {*outer, *own}, where, renamed)


def _rename(body: onnx.GraphProto, old: str, new: str) -> None:
    """Rename a tensor that `body` itself defines, and its readers."""
    rename_reads(body, old, new)
    for named in (*body.input, *body.initializer):
        if named.name == old:
            named.name = new
    for sparse in body.sparse_initializer:
        if sparse.values.name == old:
            sparse.values.name = new
    for node in body.node:
        for position, name in enumerate(node.output):
            if name == old:
                node.output[position] = new


def _return_own_tensors(draft: Draft, body: onnx.GraphProto, own: set[str]) -> None:
    for value in body.output:
        if value.name not in own:
            name = draft.new_name(f"{value.name}_returned")
            body.node.add(op_type="Identity", input=[value.name], output=[name])
            value.name = name
            own.add(name)


def _clear_repeated_names(body: onnx.GraphProto) -> None:
    counts = Counter(node.name for node in body.node)
    for node in body.node:
        if counts[node.name] > 1:
            node.ClearField("name")
