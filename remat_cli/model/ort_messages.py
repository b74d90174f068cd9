"""What onnxruntime's error texts say, and which node they speak of.

The texts are onnxruntime's own and change between releases: everything that is not recognised is passed on as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_NO_KERNEL = re.compile(
    r"Could not find an implementation for (?P<op>[^\s()]+)\(\d+\) node with name '(?P<node>.*)'", re.S
)
_NOT_REGISTERED = re.compile(r"(?P<domain>[\w.\-]*):(?P<op>\w+)\(-?\d+\) is not a registered function/op")
_NO_TYPE = re.compile(r"MLDataType for: tensor\((?P<type>\w+)\) is not currently registered or supported")
_BAD_TYPE = re.compile(
    r"Type '(?P<type>[^']*)' of (?:input|output) parameter \(.*?\) of operator \((?P<op>\w+)\) "
    r"in node \((?P<node>.*?)\) is invalid",
    re.S,
)
_RUNNING = re.compile(r"while running (?P<op>\w+) node\. Name:'(?P<node>.*?)' Status Message: (?P<reason>.*)", re.S)
_NODE = re.compile(r"Node \((?P<node>.*?)\) Op \((?P<op>\w+)\) (?P<reason>.*)", re.S)


@dataclass(frozen=True)
class RuntimeMessage:
    """One error of onnxruntime. `kind`: "no kernel" (nothing here can run the operator with these types), "failed"
    (a node was run and refused its input) or "other". Empty texts where the message does not say."""

    kind: str
    reason: str
    node: str = ""
    op_type: str = ""
    domain: str = ""
    type_text: str = ""


def parse_message(text: str) -> RuntimeMessage:
    """Sort an error text of onnxruntime."""
    plain = _PREFIX.sub("", text.strip())
    if match := _NO_KERNEL.search(plain):
        return RuntimeMessage("no kernel", "no kernel", match["node"], match["op"].rpartition(".")[2])
    if match := _NOT_REGISTERED.search(plain):
        return RuntimeMessage("no kernel", "unknown operator", op_type=match["op"], domain=match["domain"])
    if match := _NO_TYPE.search(plain):
        return RuntimeMessage("no kernel", f"no kernel for {match['type']}", type_text=match["type"])
    if match := _BAD_TYPE.search(plain):
        return RuntimeMessage("no kernel", f"{match['op']} does not take {match['type']}", match["node"], match["op"])
    if match := _RUNNING.search(plain):
        return RuntimeMessage("failed", _short(match["reason"]), match["node"], match["op"])
    if match := _NODE.search(plain):
        return RuntimeMessage("failed", _short(match["reason"]), match["node"], match["op"])
    return RuntimeMessage("other", _short(plain))


def _short(text: str) -> str:
    """The telling line of a message: without source paths and C++ signatures, on one line."""
    text = re.sub(r"/onnxruntime_src/\S+ ", "", text)
    text = re.sub(r"onnxruntime::\S+.*?\) (?=\S)", "", text, count=1)
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."
