"""The sessions of an arena engine: one for each distinct node, sharing one scratch allocator and one thread pool."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from remat_cli.errors import DeviceError, ModelError, RematError
from remat_cli.model.node_model import node_model
from remat_cli.model.ort_messages import parse_message
from remat_cli.ort_session import Device, make_session, register_scratch_arena, use_global_threads

if TYPE_CHECKING:
    import onnxruntime as ort

    from remat_cli.model.graph import Graph, GraphNode

# Reasons to run once that do not forbid two nodes to share a session.
_SHARED = ("", "unknown size")
# Embedded constants would otherwise settle inside the scratch that is held free for kernels.
_CONSTANTS_APART = ("session.use_device_allocator_for_initializers", "1")
_claim = threading.Lock()
_threads_of_process: list[int] = []


class SessionPool:
    """Sessions by node signature. Nodes that draw random numbers or keep a state get one of their own.

    Seeded operators start their stream anew in a new pool; unseeded ones hang on `seed` and on the node.
    """

    def __init__(self, graph: Graph, device: Device, threads: int, seed: int) -> None:
        self._graph = graph
        self._device = device
        self._threads = threads
        self._seed = seed
        self._shared: dict[str, ort.InferenceSession] = {}
        self._of_node: dict[str, ort.InferenceSession] = {}
        claim_threads(threads)
        register_scratch_arena()

    def __len__(self) -> int:
        return len({id(session) for session in self._of_node.values()})

    def session(self, node: GraphNode) -> ort.InferenceSession:
        """The session that runs `node`. ModelError naming the node when onnxruntime has no kernel for it."""
        if node.id not in self._of_node:
            model = node_model(self._graph, node)
            if node.once in _SHARED:
                key = hashlib.sha256(model).hexdigest()
                if key not in self._shared:
                    self._shared[key] = self._make(node, model)
                self._of_node[node.id] = self._shared[key]
            else:
                # Without a seed of its own, a random node draws from the process' seed and its index in the session,
                # which is 0 in all of these: one seed for all would give them the same numbers.
                set_seed(self._seed + len(self._of_node))
                self._of_node[node.id] = self._make(node, model)
        return self._of_node[node.id]

    def any_session(self) -> ort.InferenceSession | None:
        """One of the sessions, for what any of them can do."""
        return next(iter(self._of_node.values()), None)

    def close(self) -> None:
        """Let go of all sessions."""
        self._shared.clear()
        self._of_node.clear()

    def _make(self, node: GraphNode, model: bytes) -> ort.InferenceSession:
        try:
            return make_session(
                model,
                self._device,
                threads=self._threads,
                shared_scratch=True,
                prepack=False,
                config=[_CONSTANTS_APART],
            )
        except RematError:
            raise
        except Exception as error:
            # onnxruntime raises classes of its own that share no public base but Exception.
            message = parse_message(str(error))
            raise ModelError(f"{node.label}: {message.reason} in onnxruntime on {self._device.name}") from error


def claim_threads(threads: int) -> None:
    """Make this process' kernels run on `threads` threads. DeviceError when they already run on another number.

    onnxruntime has one global pool a process, and no session outside it once it exists.
    """
    with _claim:
        if not _threads_of_process:
            _threads_of_process.append(threads)
            if threads > 1:
                use_global_threads(threads)
        if _threads_of_process[0] != threads:
            raise DeviceError(
                f"this process already executes with {_threads_of_process[0]} threads, so it cannot with {threads}",
                "use one thread count in a process, or another process",
            )


def set_seed(seed: int) -> None:
    """Seed the process' random numbers, from which operators without a seed of their own draw."""
    import onnxruntime as ort

    ort.set_seed(seed)
