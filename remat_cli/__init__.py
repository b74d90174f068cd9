"""remat: a schedule compiler for tensor rematerialization on ONNX graphs."""

__version__ = "0.1.0"
