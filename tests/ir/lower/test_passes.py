"""The pass infrastructure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from taskmap.ir.builder import Builder
from taskmap.ir.construct import index
from taskmap.ir.errors import LoweringError, VerifyError
from taskmap.ir.lower.passes import Pass, Step, both, dump_to, explain, run_pipeline
from taskmap.ir.nodes import Buffer, For, Kernel, LoopKind
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import f32
from taskmap.ir.verify.rules import verify_each
from taskmap.ir.visit import map_body


@dataclass(frozen=True, slots=True)
class Lengthen:
    """Makes every loop longer: wrong, on purpose."""

    by: int
    name: str = "lengthen"
    before: str = "loops"
    after: str = "longer loops"
    why_here: str = ""

    def run(self, kernel: Kernel) -> Kernel:
        """The kernel with longer loops."""
        body = map_body(kernel.body, lambda s: replace(s, extent=s.extent + self.by) if isinstance(s, For) else None)
        return replace(kernel, body=body) if self.by else kernel


@dataclass(frozen=True, slots=True)
class Fail:
    """Fails."""

    name: str = "fail"
    before: str = ""
    after: str = ""
    why_here: str = "nothing comes after it"

    def run(self, kernel: Kernel) -> Kernel:
        """Never returns."""
        raise LoweringError("cannot")


def kernel() -> Kernel:
    b, x = Builder(), Buffer("x", f32, (8,))
    with b.loop("i", 8, LoopKind.PARALLEL) as i:
        b.store(x, i, 1.0)
    return Kernel("k", (x,), (x,), (), b.body(), source=SourceLocation("k.py", 7))


def test_passes_run_in_order_and_are_observed() -> None:
    steps: list[Step] = []
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


def test_dumps_are_numbered_and_only_of_what_changed(tmp_path: Path) -> None:
    run_pipeline([Lengthen(0), Lengthen(-1)], kernel(), both(dump_to(tmp_path / "dump"), verify_each()))
    files = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert files == ["00_start.txt", "02_lengthen.txt"]
    assert "parallel(7)" in (tmp_path / "dump" / "02_lengthen.txt").read_text(encoding="utf-8")


def test_a_pipeline_explains_itself() -> None:
    passes: list[Pass] = [Lengthen(1), Fail()]
    assert explain(passes) == (
        " 1  lengthen\n      before: loops\n      after: longer loops\n"
        " 2  fail\n      here because: nothing comes after it"
    )
