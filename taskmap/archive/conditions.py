"""The sizes accepted by a plan of an archive, as text: the names of dimensions, and the conditions on them."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.archive.manifest import Manifest, PlanRecord
from taskmap.backend.program.binding import axis_of
from taskmap.ir.analysis.bounds import Interval, bounds
from taskmap.ir.construct import index, static_size
from taskmap.ir.nodes import Dim, Expr, Var
from taskmap.ir.printer import print_dim
from taskmap.ir.visit import substitute

_MOST = 8
_INFINITE = float("inf")


def shapes_of(manifest: Manifest, plan: PlanRecord) -> list[list[int | str]]:
    """The input shapes accepted by a plan: fixed sizes, and the names of dimensions that may vary."""
    fixed, names = _fixed(plan), _names(manifest, plan)
    return [[n if isinstance(n, int) else fixed.get(n, _text(n, names)) for n in shape] for shape in plan.shapes]


def conditions_of(manifest: Manifest, plan: PlanRecord) -> list[str]:
    """The conditions on named dimensions, other than being at least 1."""
    fixed, names = _fixed(plan), _names(manifest, plan)
    env = {v: Interval(fixed[v], fixed[v]) if v in fixed else Interval(1, _INFINITE) for v, _ in plan.binding.dims}
    found: list[str] = []
    for n in plan.positive:
        if _least(n, env) < 1:
            found.append(f"{_text(n, names)} ≥ 1")
    for op, a, b in plan.checks:
        if op == "eq" and (_is_fixed(a, b, fixed) or _is_fixed(b, a, fixed)):
            continue
        if op == "ge" and (most := static_size(b)) is not None and _least(a, env) >= most:
            continue
        found.append(f"{_text(a, names)} {'=' if op == 'eq' else '≥'} {_text(b, names)}")
    return list(dict.fromkeys(found))


def plan_text(manifest: Manifest, plan: PlanRecord) -> str:
    """The shapes accepted by a plan: "[batch, 8], [batch, n] where n = 2 * batch"."""
    texts = [f"[{', '.join(map(str, shape))}]" for shape in shapes_of(manifest, plan)]
    conditions = conditions_of(manifest, plan)
    more = [f"{len(conditions) - _MOST} more conditions"] if len(conditions) > _MOST else []
    where = " and ".join(conditions[:_MOST] + more)
    return f"{', '.join(texts) or 'no inputs'}{f' where {where}' if where else ''}"


def refusal_of(manifest: Manifest, shapes: Sequence[Sequence[int]]) -> str:
    """The reason why no plan accepts inputs of these shapes: the list of all plans."""
    plans = "; ".join(plan_text(manifest, plan) for plan in manifest.plans)
    empty = any(n == 0 for shape in shapes for n in shape) and any(plan.positive for plan in manifest.plans)
    return f"it has plans for {plans}{', with sizes of at least 1' if empty else ''}."


def _fixed(plan: PlanRecord) -> dict[Dim, int]:
    """The symbolic sizes that the checks restrict to one value."""
    found: dict[Dim, int] = {}
    for op, a, b in plan.checks:
        for size, other in ((a, b), (b, a)):
            value = static_size(other)
            if op == "eq" and isinstance(size, Var) and value is not None:
                found.setdefault(size, value)
    return found


def _is_fixed(size: Dim, value: Dim, fixed: dict[Dim, int]) -> bool:
    return isinstance(size, Var) and size in fixed and static_size(value) == fixed[size]


def _names(manifest: Manifest, plan: PlanRecord) -> dict[Var, Expr]:
    """For each symbolic size, a variable with the name of the model's dimension, as --shape takes it."""
    found: dict[Var, Expr] = {}
    for var, source in plan.binding.dims:
        at = axis_of(source)
        if at is None:
            assert isinstance(source, (int, Expr))
            found[var] = substitute(source, found) if isinstance(source, Expr) else index(source)
            continue
        port, axis = at
        declared = manifest.inputs[port].shape
        name = declared[axis] if declared is not None and axis < len(declared) else None
        found[var] = Var(name if isinstance(name, str) else f"{manifest.inputs[port].name}.{axis}")
    return found


def _least(size: Dim, env: dict[Var, Interval]) -> float:
    if isinstance(size, int):
        return size
    try:
        return bounds(size, env).lo
    except (ArithmeticError, ValueError, TypeError):
        return -_INFINITE


def _text(size: Dim, names: dict[Var, Expr]) -> str:
    return print_dim(substitute(size, names) if isinstance(size, Expr) else size)
