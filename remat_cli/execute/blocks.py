"""Blocks of memory at a fixed address, which sessions read and write through raw pointers."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from remat_cli.errors import DeviceError
from remat_cli.units import format_bytes

# A null pointer is refused by onnxruntime even where no byte is read, so an empty block still owns a page.
_SMALLEST = mmap.PAGESIZE


class HostBlock:
    """`size` bytes of zeroed, page-aligned host memory. Pages that are never touched cost nothing.

    `what` names the block in messages. Raises DeviceError when the system does not give the memory.
    """

    def __init__(self, size: int, what: str) -> None:
        self.size = size
        try:
            self._map = _anonymous(max(size, _SMALLEST))
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceError(
                f"cpu: out of memory: the system refused {size} bytes ({format_bytes(size)}) for {what}: {error}",
                "solve with a smaller budget, or free memory (remat doctor shows how much there is)",
            ) from error
        anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(anchor)
        # An exported pointer would keep `close` from giving the memory back; the mapping does not move without it.
        del anchor

    def view(self, offset: int, length: int) -> memoryview:
        """The bytes [offset, offset + length) as a writable view. Release it before `close`."""
        if not 0 <= offset <= offset + length <= max(self.size, _SMALLEST):
            raise ValueError(f"bytes {offset} to {offset + length} lie outside a block of {self.size}")
        return memoryview(self._map)[offset : offset + length]

    def close(self) -> None:
        """Give the memory back to the system. Nothing may use its address afterwards."""
        # An error on its way up may still hold a view; the memory then goes with the last of them.
        with contextlib.suppress(BufferError):
            self._map.close()


def _anonymous(size: int) -> mmap.mmap:
    # Python's default is MAP_SHARED, which the system accounts as shared memory and not as this process' own.
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)
