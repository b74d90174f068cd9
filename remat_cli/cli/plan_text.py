"""How commands tell of a plan: the same figures as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from remat_cli.units import Percent, format_bytes, format_ns

if TYPE_CHECKING:
    from remat_cli.plan.types import Plan, PlanDevice
    from remat_cli.profile.types import ProfileDevice


def size_text(size_bytes: int) -> str:
    """Both forms: exact for machines and bug reports, short for people."""
    return f"{size_bytes} bytes ({format_bytes(size_bytes)})" if size_bytes >= 1000 else f"{size_bytes} bytes"


def device_text(device: PlanDevice | ProfileDevice) -> str:
    """Where costs hold, such as ``cpu, 1 thread``."""
    return f"{device.name}, {device.threads} thread{'s' if device.threads != 1 else ''}"


def percent_text(part: int, whole: int) -> str:
    """`part` of `whole`; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def overhead(plan: Plan) -> float | None:
    """Extra time over computing every node once, as a share: 0.05 is 5 %. None where nothing costs anything."""
    predicted = plan.predicted
    return predicted.compute_ns / predicted.store_all_ns - 1 if predicted.store_all_ns else None


def gap(plan: Plan) -> float | None:
    """How far the cost may be from the best possible, as a share of the cost; None without a proved bound."""
    bound, cost = plan.solver.lower_bound_ns, plan.predicted.compute_ns
    if bound is None:
        return None
    return (cost - bound) / cost if cost else 0.0


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The figures of a plan as JSON values; key names are the plan file's own."""
    return {
        "model": msgspec.to_builtins(plan.model),
        "device": msgspec.to_builtins(plan.device),
        "costs": msgspec.to_builtins(plan.costs),
        "budget_bytes": plan.budget_bytes,
        "solver": msgspec.to_builtins(plan.solver),
        "predicted": msgspec.to_builtins(plan.predicted),
        "overhead": overhead(plan),
        "gap": gap(plan),
    }


def budget_text(asked: int | Percent | str, budget_bytes: int) -> str:
    """The budget as parsed, so that users see what was understood."""
    text = size_text(budget_bytes)
    if isinstance(asked, Percent):
        return f"{text}: fixed + {float(asked.share) * 100:g} % of the store-all peak of activations"
    return f"{text}: {asked}" if isinstance(asked, str) else text


def plan_facts(plan: Plan, asked: int | Percent | str | None = None) -> list[tuple[str, str]]:
    """What users want to know of a plan, as `name  value` lines. `asked`: the budget as it was given."""
    predicted, solver = plan.predicted, plan.solver
    budget = plan.budget_bytes
    share = percent_text(predicted.peak_bytes, predicted.store_all_peak_bytes)
    extra = overhead(plan)
    facts = [
        ("budget", budget_text(budget if asked is None else asked, budget)),
        ("fixed", f"{size_text(predicted.fixed_bytes)} of inputs, weights, constants and workspace"),
        ("store-all peak", size_text(predicted.store_all_peak_bytes)),
        ("peak", f"{size_text(predicted.peak_bytes)}, {share} of store-all"),
        ("method", _method(plan)),
        (
            "cost",
            format_ns(predicted.compute_ns) + (f", {100 * extra:+.2f} % over store-all" if extra is not None else ""),
        ),
        ("recomputed", f"{predicted.recomputed} times, beside the {len(plan.nodes)} nodes"),
    ]
    if solver.lower_bound_ns is not None:
        facts.append(
            ("bound", f"{format_ns(solver.lower_bound_ns)}, gap {100 * (gap(plan) or 0.0):.2f} % ({solver.scope})")
        )
    return facts


def _method(plan: Plan) -> str:
    solver = plan.solver
    asked = f"{solver.asked} -> " if solver.asked != solver.method else ""
    return f"{asked}{solver.method}, {solver.status}"
