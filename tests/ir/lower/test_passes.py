"""The pass infrastructure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from taskmap.ir.builder import Builder
from taskmap.ir.construct import constant_value, index
from taskmap.ir.errors import LoweringError, VerifyError
from taskmap.ir.nodes import Buffer, For, Kernel, LoopKind
from taskmap.ir.passes import Condition, Invariant, Pass, Step, both, dump_each, explain, run_pipeline
from taskmap.ir.printer import print_kernel
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import f32
from taskmap.ir.verify.rules import verify_each
from taskmap.ir.visit import map_body


@dataclass(frozen=True, slots=True)
class Lengthen(Pass[Kernel]):
    """Makes every loop longer: wrong, on purpose."""

    by: int
    name = "lengthen"
    before = "loops"
    after = "longer loops"

    def run(self, kernel: Kernel) -> Kernel:
        """The kernel with longer loops."""
        body = map_body(kernel.body, lambda s: replace(s, extent=s.extent + self.by) if isinstance(s, For) else None)
        return replace(kernel, body=body) if self.by else kernel


@dataclass(frozen=True, slots=True)
class Fail(Pass[Kernel]):
    """Fails."""

    name = "fail"
    why_here = "nothing comes after it"

    def run(self, kernel: Kernel) -> Kernel:
        """Never returns."""
        raise LoweringError("cannot")


def kernel() -> Kernel:
    b, x = Builder(), Buffer("x", f32, (8,))
    with b.loop("i", 8, LoopKind.PARALLEL) as i:
        b.store(x, i, 1.0)
    return Kernel("k", (x,), (x,), (), b.body(), source=SourceLocation("k.py", 7))


def test_passes_run_in_order_and_are_observed() -> None:
    steps: list[Step[Kernel]] = []
    result = run_pipeline([Lengthen(0), Lengthen(-1), Lengthen(-2)], kernel(), steps.append)
    (loop,) = result.body
    assert isinstance(loop, For)
    assert loop.extent == index(5)
    assert [(s.place, s.by.name, s.changed) for s in steps] == [
        (1, "lengthen", False), (2, "lengthen", True), (3, "lengthen", True)
    ]  # fmt: skip
    assert steps[1].after is steps[2].before
    assert all(s.seconds >= 0 for s in steps)


def test_an_error_is_placed_at_the_kernel() -> None:
    with pytest.raises(LoweringError, match=r"cannot\n  k.py:7"):
        run_pipeline([Fail()], kernel())


def test_the_verifier_names_the_pass_that_broke_a_rule() -> None:
    passes = [Lengthen(-1), Lengthen(2)]
    with pytest.raises(VerifyError, match=r"before the pass 'lengthen', number 2"):
        run_pipeline(passes, kernel(), verify_each())
    assert run_pipeline(passes[:1], kernel(), verify_each()).body


def test_every_step_is_dumped_and_verified() -> None:
    seen: list[tuple[str, str]] = []
    observe = both(dump_each(lambda name, k: seen.append((name, print_kernel(k)))), None, verify_each())
    run_pipeline([Lengthen(0), Lengthen(-1)], kernel(), observe)
    assert [name for name, _ in seen] == ["lengthen", "lengthen"]
    assert "parallel(8)" in seen[0][1]
    assert "parallel(7)" in seen[1][1]
    assert both(None, None) is None


def extent(k: Kernel) -> int:
    (loop,) = k.body
    assert isinstance(loop, For)
    return int(constant_value(loop.extent) or 0)


def at_most(most: int) -> Condition[Kernel]:
    return Condition(f"no loop runs more than {most} times", lambda k: f"{extent(k)}." if extent(k) > most else None)


def other_parity(a: Kernel, b: Kernel) -> str | None:
    return None if (extent(a) - extent(b)) % 2 == 0 else "it is other."


@dataclass(frozen=True, slots=True)
class Shorten(Lengthen):
    """Promises more than it does, unless ``by`` is in order."""

    name = "shorten"
    requires = (at_most(8),)
    ensures = (at_most(7),)
    keeps = (Invariant("the parity", other_parity),)


def test_conditions_are_checked_where_that_is_wanted() -> None:
    assert extent(run_pipeline([Shorten(-2)], kernel(), verify=True)) == 6
    wrong: list[tuple[list[Pass[Kernel]], str]] = [
        (
            [Lengthen(1), Shorten(-2)],
            r"'shorten', number 2, cannot run: it requires that no loop runs more than 8 times",
        ),
        ([Shorten(0)], r"'shorten', number 1, does not ensure that no loop runs more than 7 times"),
        ([Shorten(-1)], r"'shorten', number 1, does not keep the parity"),
    ]
    for passes, message in wrong:
        run_pipeline(passes, kernel())  # nobody asked
        with pytest.raises(VerifyError, match=message):
            run_pipeline(passes, kernel(), verify=True)


def test_a_pipeline_explains_itself() -> None:
    passes: list[Pass[Kernel]] = [Lengthen(1), Fail(), Shorten(1)]
    assert explain(passes) == (
        " 1  lengthen\n      before: loops\n      after: longer loops\n"
        " 2  fail\n      here because: nothing comes after it\n"
        " 3  shorten\n      before: loops\n      requires: no loop runs more than 8 times\n      after: longer loops\n"
        "      ensures: no loop runs more than 7 times\n      keeps: the parity"
    )
