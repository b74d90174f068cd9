"""Names in messages: quoted, cut to a readable length, and free of control characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import onnx

_LONGEST = 80


def quoted(name: str) -> str:
    """``'name'``, cut in the middle when very long; control characters are escaped."""
    text = name if name.isprintable() else repr(name)[1:-1]
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 20]}...{text[-15:]}"
    return f"'{text}'"


def node_labels(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """How messages name each node: by the file's own name where it is there and unique, else by position."""
    counts = Counter(node.name for node in nodes)
    labels = []
    for position, node in enumerate(nodes):
        if not node.name:
            labels.append(f"{node.op_type} (node {position})")
        elif counts[node.name] > 1 or len(node.name) > _LONGEST:
            labels.append(f"{node.op_type} {quoted(node.name)} (node {position})")
        else:
            labels.append(f"{node.op_type} {quoted(node.name)}")
    return labels


def listed(names: Iterable[str], most: int = 10) -> str:
    """``a, b, c and 7 more``."""
    all_names = list(names)
    text = ", ".join(all_names[:most])
    return text if len(all_names) <= most else f"{text} and {len(all_names) - most} more"


def shape_text(shape: Iterable[object]) -> str:
    """``8x3x32x32``; ``scalar`` for no dims."""
    return "x".join(map(str, shape)) or "scalar"
