"""The order of the recomputed nodes inside one stage.

Any order that computes inputs first is legal. Ascending node order is good for chains; where many branches meet,
taking at each point the node that grows memory least keeps the stage's peak lower.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.solve.instance import Instance


def stage_peak(
    instance: Instance,
    order: Sequence[int],
    live: int,
    held_in: Sequence[bytearray],
    stage: int,
) -> int:
    """Bytes at the worst step of a stage that runs `order` and begins with `live` bytes.

    `held_in[t][s]` tells whether storage t is held into stage s. A storage that is neither held into the next stage
    nor read later in this one dies; if it dies in a step that may run in place of it, the output costs nothing.
    """
    size, reads, writes = instance.size, instance.reads, instance.writes
    step_bytes, in_place = instance.step_bytes, instance.in_place
    left = _reads_left(instance, order)
    after = stage + 1
    worst = 0
    for v in order:
        during = live + step_bytes[v]
        for t in in_place[v]:
            if left[t] == 1 and not held_in[t][after]:
                during -= size[t]
                break
        if during > worst:
            worst = during
        for t in reads[v]:
            left[t] -= 1
            if not left[t] and not held_in[t][after]:
                live -= size[t]
        for t in writes[v]:
            if not held_in[t][stage] and (held_in[t][after] or left.get(t)):
                live += size[t]
    return worst


def frugal_order(instance: Instance, run: Sequence[int], held_in: Sequence[bytearray], stage: int) -> tuple[int, ...]:
    """The nodes of `run`, each time the ready one that grows memory least; the stage's own node comes last."""
    size, reads, writes, producer = instance.size, instance.reads, instance.writes, instance.producer
    left = _reads_left(instance, run)
    after = stage + 1
    here = set(run)
    waits: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for v in run:
        makers = {producer[t] for t in reads[v] if not held_in[t][stage] and producer[t] in here}
        waits[v] = len(makers)
        for p in makers:
            users.setdefault(p, []).append(v)

    def growth(v: int) -> int:
        grown = 0
        for t in writes[v]:
            if not held_in[t][stage] and (held_in[t][after] or t in left):
                grown += size[t]
        for t in reads[v]:
            if left[t] == 1 and not held_in[t][after]:
                grown -= size[t]
        return grown

    ready = [v for v in run if not waits[v] and v != stage]
    order: list[int] = []
    while ready:
        v = min(ready, key=lambda u: (growth(u), u))
        ready.remove(v)
        order.append(v)
        for t in reads[v]:
            left[t] -= 1
        for u in users.get(v, ()):
            waits[u] -= 1
            if not waits[u] and u != stage:
                ready.append(u)
    order.append(stage)
    return tuple(order)


def _reads_left(instance: Instance, order: Sequence[int]) -> dict[int, int]:
    left: dict[int, int] = {}
    for v in order:
        for t in instance.reads[v]:
            left[t] = left.get(t, 0) + 1
    return left
