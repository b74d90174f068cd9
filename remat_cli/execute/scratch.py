"""The scratch that kernels share: one piece of memory, held all the time, that never has to grow."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

from remat_cli.errors import DeviceError
from remat_cli.model.ort_messages import parse_message
from remat_cli.units import format_bytes

# Kernels ask for scratch in pieces, each rounded up. What is left of the slack is never touched, and so costs nothing;
# without it, a piece that misses by a few bytes makes the allocator take as much again.
_SLACK_BYTES = 2**20
# The margin of `committed_workspace` (a 32nd on top is a 33rd of the whole) must stay untouched, or it is no margin.
_MARGIN_PART = 33


class SharedScratch:
    """`size` bytes of the allocator that all sessions of the process share (`register_scratch_arena`).

    The allocator takes them in one piece, hands out parts of it, and never gives pages back by itself.
    """

    def __init__(self, session: Any, size: int) -> None:
        self._session = session
        self._size = size
        self._take()

    def give_back(self, size: int) -> None:
        """Return `size` bytes of touched pages to the system, for a kernel that takes that much from the C heap:
        together they stay within the size. Only on Linux; elsewhere the peak may be higher by that much."""
        if not hasattr(mmap, "MADV_DONTNEED") or sys.platform != "linux":
            return
        # While this value lives nobody else has the piece, so nothing of worth is lost.
        piece = self._take()
        start = piece.data_ptr() + max(self._size - size - self._size // _MARGIN_PART, 0)
        end = piece.data_ptr() + self._size + _SLACK_BYTES
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)

    def _take(self) -> Any:
        size = self._size + _SLACK_BYTES
        try:
            return self._session.create_ortvalue_from_shape_and_type([size], np.uint8, "cpu")
        except Exception as error:
            # onnxruntime raises RuntimeError or a class of its own when its allocator fails.
            raise DeviceError(
                f"cpu: out of memory: {size} bytes ({format_bytes(size)}) of kernel workspace were refused:"
                f" {parse_message(str(error)).reason}",
                "free memory, or plan with a smaller model or batch",
            ) from error
