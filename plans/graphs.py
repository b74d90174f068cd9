"""Small ONNX graphs for the golden plans, built from scratch: one for each thing that a plan can hold."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
IR_VERSION = 10


class _Builder:
    """Collects the nodes of one graph; `op` returns the name of the first output."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, name: str, values: list[int] | float) -> str:
        dtype = np.int64 if isinstance(values, list) else np.float32
        self.initializers.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def op(self, op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=f"{op_type}_{output}", **attributes))
        return output

    def output(self, name: str, *shape: int) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def model(self, state: dict[str, str] | None = None) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        if state:
            helper.set_model_props(model, {"remat.state": json.dumps(state)})
        onnx.checker.check_model(model)
        return model


def mlp_train(depth: int = 8, batch: int = 64, width: int = 128, dropout: bool = False) -> onnx.ModelProto:
    """A training step of a tanh MLP: forward, squared loss, backward by hand, SGD updates as states."""
    b = _Builder("mlp_train")
    weights = [b.input(f"w{i}", width, width) for i in range(depth)]
    x = b.input("x", batch, width)
    target = b.input("target", batch, width)
    rate, one = b.constant("lr", 0.01), b.constant("one", 1.0)
    training = ratio = ""
    if dropout:
        b.initializers.append(numpy_helper.from_array(np.array(True), "training"))
        training, ratio = "training", b.constant("ratio", 0.1)
    acts, masks = [x], []
    for i, w in enumerate(weights):
        hidden = b.op("Tanh", [b.op("MatMul", [acts[-1], w], f"z{i}")], f"h{i}")
        if training and i == depth // 2:
            b.nodes.append(helper.make_node("Dropout", [hidden, ratio, training], [f"d{i}", f"mask{i}"], seed=7))
            masks.append(f"mask{i}")
            hidden = f"d{i}"
        acts.append(hidden)
    error = b.op("Sub", [acts[-1], target], "error")
    axes = b.constant("axes", [0, 1])
    b.op("ReduceMean", [b.op("Mul", [error, error], "squares"), axes], "loss", keepdims=0)
    b.output("loss")
    gradient = error
    for i in reversed(range(depth)):
        if training and i == depth // 2:
            keep = b.op("Cast", [masks.pop()], f"keep{i}", to=TensorProto.FLOAT)
            gradient = b.op("Mul", [gradient, keep], f"gd{i}")
        slope = b.op("Sub", [one, b.op("Mul", [f"h{i}", f"h{i}"], f"hh{i}")], f"slope{i}")
        gz = b.op("Mul", [gradient, slope], f"gz{i}")
        gw = b.op("MatMul", [b.op("Transpose", [acts[i]], f"xt{i}"), gz], f"gw{i}")
        if i:
            gradient = b.op("MatMul", [gz, b.op("Transpose", [weights[i]], f"wt{i}")], f"gx{i}")
        b.op("Sub", [weights[i], b.op("Mul", [gw, rate], f"step{i}")], f"w{i}/new")
        b.output(f"w{i}/new", width, width)
    return b.model({f"w{i}/new": f"w{i}" for i in range(depth)})


def unet_forward(channels: int = 8, size: int = 32) -> onnx.ModelProto:
    """A two-level U-Net: skip connections, pooling, upsampling, a concatenation and a flattened output (a view)."""
    b = _Builder("unet_forward")
    rng = np.random.default_rng(0)
    image = b.input("image", 1, channels, size, size)

    def conv(source: str, name: str, inputs: int, outputs: int) -> str:
        kernel = rng.standard_normal((outputs, inputs, 3, 3), np.float32)
        b.initializers.append(numpy_helper.from_array(kernel, f"{name}.weight"))
        return b.op("Relu", [b.op("Conv", [source, f"{name}.weight"], f"{name}_z", pads=[1, 1, 1, 1])], name)

    down0 = conv(conv(image, "down0a", channels, channels), "down0b", channels, channels)
    pooled = b.op("MaxPool", [down0], "pool0", kernel_shape=[2, 2], strides=[2, 2])
    bottom = conv(conv(pooled, "bottom_a", channels, 2 * channels), "bottom_b", 2 * channels, 2 * channels)
    b.initializers.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    wide = b.op("Resize", [bottom, "", "scales"], "up0", mode="nearest")
    joined = b.op("Concat", [down0, wide], "joined", axis=1)
    last = conv(joined, "up0a", 3 * channels, channels)
    b.op("Flatten", [last], "mask", axis=1)
    b.output("mask", 1, channels * size * size)
    return b.model()


def equal_branches(branches: int = 8, width: int = 1024) -> onnx.ModelProto:
    """Branches that tie in cost and size: nothing but a fixed rule can choose between their schedules."""
    b = _Builder("equal_branches")
    x = b.input("x", width)
    for i in range(branches):
        grown = b.op("Exp", [x], f"a{i}")
        b.op("Mul", [grown, b.op("Tanh", [grown], f"c{i}")], f"m{i}")
    total = "m0"
    for i in range(1, branches):
        total = b.op("Add", [total, f"m{i}"], f"s{i}")
    for i in range(branches):
        total = b.op("Mul", [total, f"m{i}"], f"r{i}")
    b.output(total, width)
    return b.model()


GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    "equal_branches": equal_branches,
    "mlp_dropout": lambda: mlp_train(depth=4, dropout=True),
    "mlp_train": mlp_train,
    "unet_forward": unet_forward,
}
