"""Random problems with everything that the memory rule knows, to hold solvers against brute force."""

from __future__ import annotations

import random
from dataclasses import replace

from remat_cli.problem import Node, Problem, Tensor


def random_problem(seed: int, n: int | None = None, *, in_place: bool = True, states: bool = True) -> Problem:
    """A random graph of 3 to 7 nodes (or `n`): chains and DAGs, nodes with two outputs, views, weights, zero sizes and
    costs, workspace, nodes that run once, in-place candidates, several graph outputs, a state update."""
    rng = random.Random(seed)
    count = n or rng.randint(3, 7)
    tensors = [Tensor("x", 0, "input"), Tensor("W", 0, "weight")]
    nodes: list[Node] = []
    readable = [0]
    chainlike = rng.random() < 0.4
    for v in range(count):
        inputs = _inputs(rng, readable, chainlike)
        if rng.random() < 0.3:
            inputs.append(1)
        size = rng.choice([0, 1, 2, 3, 3, 5, 8])
        outputs = [len(tensors)]
        tensors.append(Tensor(f"t{v}", size, "activation", producer=v))
        if rng.random() < 0.25:
            outputs.append(len(tensors))
            tensors.append(Tensor(f"t{v}:1", rng.choice([0, 1, 4]), "activation", producer=v))
        readable += outputs
        if rng.random() < 0.15:
            readable.append(len(tensors))
            tensors.append(Tensor(f"view{v}", 0, "view", view_of=outputs[0]))
        nodes.append(
            Node(
                f"t{v}",
                "Op",
                tuple(inputs),
                tuple(outputs),
                cost_ns=rng.choice([0, 1, 1, 2, 5, 9]),
                workspace_bytes=rng.choice([0, 0, 0, 2]),
                recomputable=rng.random() > 0.12,
                in_place_inputs=tuple(inputs[:1]) if in_place and inputs[0] > 1 and rng.random() < 0.5 else (),
            )
        )
    made = [t for t in readable if t > 1]
    outputs_of_graph = tuple(sorted(rng.sample(made, min(len(made), rng.choice([0, 1, 1, 2])))))
    problem = Problem(f"random {seed}", tuple(nodes), tuple(tensors), outputs_of_graph)
    if states and rng.random() < 0.2 and any(1 in node.inputs for node in nodes):
        problem = _with_update(problem, rng)
    return problem


def _inputs(rng: random.Random, readable: list[int], chainlike: bool) -> list[int]:
    recent = readable[-1:] if chainlike else rng.sample(readable, min(len(readable), rng.choice([1, 1, 2])))
    far = [rng.choice(readable)] if rng.random() < 0.4 else []
    return [*recent, *far]


def _with_update(problem: Problem, rng: random.Random) -> Problem:
    """Adds W/new = update(W, some tensor), after all readers of W."""
    v = len(problem.nodes)
    gradient = rng.choice([t for node in problem.nodes for t in node.outputs])
    update = Node("W/new", "Update", (1, gradient), (len(problem.tensors),), cost_ns=1)
    state = Tensor("W/new", 0, "state", producer=v, state_of=1)
    return replace(
        problem,
        nodes=(*problem.nodes, update),
        tensors=(*problem.tensors, state),
        outputs=(*problem.outputs, len(problem.tensors)),
    )


def budgets(low: int, store_all_peak: int, most: int = 5) -> list[int]:
    """A few capacities from `low` to store-all's peak, spread evenly, and one too small for anything."""
    spread = {low + (store_all_peak - low) * k // (most - 1) for k in range(most)}
    return sorted(b for b in spread | {low - 1} if b >= 0)
