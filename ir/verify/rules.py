"""The verifier: a table of rules for every kernel, and a second one for lowered kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from taskmap.ir.errors import VerifyError
from taskmap.ir.nodes import Kernel
from taskmap.ir.passes import Observer, Step
from taskmap.ir.printer import print_body
from taskmap.ir.verify import instructions as invoke
from taskmap.ir.verify import structure, types
from taskmap.ir.verify.bounds import BufferAccess, accesses, bounds
from taskmap.ir.verify.violation import Violation


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by name; ``check`` yields a violation for each place that breaks it, and its docstring states the rule."""

    name: str
    check: Callable[[Kernel], Iterable[Violation]]


RULES = (
    Rule("launch", structure.launch),
    Rule("definitions", structure.definitions),
    Rule("outputs", structure.outputs),
    Rule("types", types.types),
    Rule("lanes", types.lanes),
    Rule("ranks", types.ranks),
    Rule("control", types.control),
    Rule("reductions", types.reductions),
    Rule("regions", types.regions),
    Rule("buffers", types.buffers),
    Rule("vector loops", structure.vector_loops),
    Rule("parallel loops", structure.parallel_loops),
    Rule("workers", structure.workers),
    Rule("barriers", structure.barriers),
    Rule("operands", invoke.operands),
    Rule("collectives", invoke.collectives),
    Rule("tensor maps", invoke.maps),
    Rule("bounds", bounds),
)
"""Rules for every kernel, before and after every pass. Bounds come last: they rely on the others."""

LOWERED = (Rule("lowered", structure.lowered), Rule("registers", structure.registers))
"""Additional rules for kernels after lowering."""


def flaws(kernel: Kernel, rules: Sequence[Rule] = RULES) -> Iterator[tuple[Rule, Violation]]:
    """Every violation of a rule in ``kernel``, rule by rule."""
    for rule in rules:
        for flaw in rule.check(kernel):
            yield rule, flaw


def verify(kernel: Kernel, rules: Sequence[Rule] = RULES) -> None:
    """Raises VerifyError for the first rule that ``kernel`` violates, with the statement that violates it."""
    for rule, flaw in flaws(kernel, rules):
        raise _error(kernel, rule, flaw)


def verified(kernel: Kernel, lower: Callable[[Observer[Kernel]], Kernel]) -> Kernel:
    """``kernel`` after the passes that ``lower`` runs, with the rules checked before, after each pass, and at the end
    those of lowered kernels, too. Raises VerifyError."""
    verify(kernel)
    lowered = lower(verify_each())
    verify(lowered, LOWERED)
    return lowered


def _error(kernel: Kernel, rule: Rule, flaw: Violation) -> VerifyError:
    text = print_body(flaw.stmt).splitlines()[0] if flaw.stmt else None
    source = getattr(flaw.stmt, "source", None) or (None if flaw.stmt else kernel.source)
    why = flaw.why if source is None or text is None else f"in {text}\n{flaw.why}"
    return VerifyError(f"kernel {kernel.name!r} violates the rule '{rule.name}'", where=source or text, why=why)


def unproved(kernel: Kernel) -> list[BufferAccess]:
    """The accesses that could be proved neither inside nor outside their buffers."""
    return [access for access in accesses(kernel) if access.inside is None]


def verify_each(rules: Sequence[Rule] = RULES) -> Observer[Kernel]:
    """A pipeline observer that verifies the output of every pass, and names the pass that introduced a violation."""

    def observe(step: Step[Kernel]) -> None:
        if not step.changed:
            return
        try:
            verify(step.after, rules)
        except VerifyError as error:
            error.hint = f"The kernel was valid before the pass {step.by.name!r}, number {step.place}."
            raise

    return observe
