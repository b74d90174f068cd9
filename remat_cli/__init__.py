"""remat: a schedule compiler for tensor rematerialization on ONNX graphs."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Executor", "__version__"]

if TYPE_CHECKING:
    from remat_cli.execute.executor import Executor


def __getattr__(name: str) -> object:
    """`remat_cli.Executor`, imported when it is asked for: it loads onnx and onnxruntime, which the command does not
    need for its help."""
    if name == "Executor":
        from remat_cli.execute.executor import Executor

        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
