"""Error texts of onnxruntime, as 1.31 writes them."""

from __future__ import annotations

import pytest

from remat_cli.model.ort_messages import RuntimeMessage, parse_message

CODES = {"1": "FAIL", "2": "INVALID_ARGUMENT", "9": "NOT_IMPLEMENTED", "10": "INVALID_GRAPH"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "9|Could not find an implementation for Add(14) node with name 'a'",
            RuntimeMessage("no kernel", "no kernel", "a", "Add"),
        ),
        (
            "9|Could not find an implementation for com.microsoft.Foo(1) node with name 'it's 'odd''",
            RuntimeMessage("no kernel", "no kernel", "it's 'odd'", "Foo"),
        ),
        (
            "1|Fatal error: my.domain:Foo(-1) is not a registered function/op",
            RuntimeMessage("no kernel", "unknown operator", op_type="Foo", domain="my.domain"),
        ),
        (
            "1|Exception during loading: MLDataType for: tensor(complex64) is not currently registered or supported",
            RuntimeMessage("no kernel", "no kernel for complex64", type_text="complex64"),
        ),
        (
            "10|This is an invalid model. Type Error: Type 'tensor(int2)' of input "
            "parameter (x) of operator (Identity) in node (n) is invalid.",
            RuntimeMessage("no kernel", "Identity does not take tensor(int2)", "n", "Identity"),
        ),
        (
            "2|Non-zero status code returned while running Gather node. "
            "Name:'12' Status Message: indices element out of data bounds, idx=7",
            RuntimeMessage("failed", "indices element out of data bounds, idx=7", "12", "Gather"),
        ),
        (
            "1|Node (n1) Op (Concat) [ShapeInferenceError] All inputs must have same rank",
            RuntimeMessage("failed", "[ShapeInferenceError] All inputs must have same rank", "n1", "Concat"),
        ),
        ("something\nnew", RuntimeMessage("other", "something new")),
        ("", RuntimeMessage("other", "")),
    ],
)
def test_known_texts(text: str, expected: RuntimeMessage) -> None:
    code, _, rest = text.partition("|")
    whole = f"[ONNXRuntimeError] : {code} : {CODES[code]} : {rest}" if rest else text
    assert parse_message(whole) == expected


def test_long_texts_are_cut() -> None:
    message = parse_message("x" * 1000)
    assert len(message.reason) == 300
    assert message.reason.endswith("...")
