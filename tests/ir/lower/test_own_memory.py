"""Memory private to a launch: workspace, and counters that every kernel resets to 0."""

from __future__ import annotations

import json

import numpy as np
import pytest

from taskmap.backend.cuda.codegen import generate
from taskmap.backend.sim import run as sim
from taskmap.ir.builder import Builder
from taskmap.ir.construct import const, eq, load
from taskmap.ir.errors import SimulationError, VerifyError
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, GpuLaunch, Intrinsic, Kernel, Scope, Var
from taskmap.ir.printer import print_kernel
from taskmap.ir.types import f32, i32
from taskmap.ir.util.codec import parsed
from taskmap.ir.verify.rules import RULES, flaws, verify
from taskmap.ir.workers import BLOCKS, THREAD
from taskmap.targets.source_record import SOURCE

BLOCK_COUNT = 5


def total(*, cleared: bool = True) -> Kernel:
    """The sum of x, one element for each block: the last block to arrive adds them up, in their order."""
    x, y = Buffer("x", f32, (BLOCK_COUNT,)), Buffer("y", f32, (1,))
    parts, counters = Buffer("parts", f32, (BLOCK_COUNT,)), Buffer("counters", i32, (2,))
    b = Builder()
    fence = instruction_named("fence_gpu")
    with b.when(THREAD < 1):
        b.store(parts, BLOCKS[0], x[BLOCKS[0]])
        b.invoke(fence)
        operands = (load(counters, (1,)), const(1, i32))
        arrived = b.let("arrived", Intrinsic(instruction_named("atomic_add_i32"), operands, i32, 1))
        b.invoke(fence)
        with b.when(eq(arrived, const(BLOCK_COUNT - 1, i32))):
            cell = b.allocate("sum", f32, (1,), Scope.REGISTER, init=0.0)
            with b.loop("n", BLOCK_COUNT) as n:
                b.store(cell, 0, cell[0] + parts[n])
            b.store(y, 0, cell[0])
            if cleared:
                operands = (load(counters, (1,)), const(0, i32))
                b.evaluate(Intrinsic(instruction_named("atomic_exch_i32"), operands, i32, 1))
    launch = GpuLaunch((BLOCK_COUNT,), 32, workspace=(parts,), counters=(counters,))
    return Kernel("total", (x, y), (y,), (), b.body(), launch)


X = np.arange(1, 1 + BLOCK_COUNT, dtype=np.float32)


def test_blocks_put_their_parts_together() -> None:
    kernel = total()
    verify(kernel, RULES)
    x, y = kernel.buffers
    for seed in range(3):
        assert interpret(kernel, {x: X}, seed=seed)[y] == [15]
    source = generate(lower(kernel))
    assert (source.workspace, source.counters) == ((4 * BLOCK_COUNT,), (8,))
    parameters = "tm_global<float> y, tm_global<float> parts, tm_global<int> counters)"
    assert parameters in " ".join(source.text.split())
    for seed in (0, 1, 7):
        out = np.empty(1, np.float32)
        sim.run(source, [X, out], seed=seed, outputs=[1])
        assert out == [15]


def test_counters_are_left_at_0() -> None:
    kernel = total(cleared=False)
    with pytest.raises(VerifyError, match="does not leave its counters counters at 0"):
        interpret(kernel, {kernel.buffers[0]: X})
    source = generate(lower(kernel))
    with pytest.raises(SimulationError, match="ends with 1 counters that are not 0"):
        sim.run(source, [X, np.empty(1, np.float32)], outputs=[1])
    report = sim.run(source, [X, np.empty(1, np.float32)], outputs=[1], raises=False)
    assert [p.kind for p in report.problems] == ["misuse"]


def test_it_is_part_of_the_text_the_symbol_and_the_record() -> None:
    kernel = total()
    assert "own parts: f32[5]" in print_kernel(kernel)
    assert "counters counters: i32[2]" in print_kernel(kernel)
    source = generate(lower(kernel))
    assert kernel.launch is not None
    workspace = (*kernel.launch.workspace, Buffer("more", f32, (4,)))
    larger = generate(lower(kernel.launched(workspace=workspace)))
    assert larger.symbol != source.symbol
    assert SOURCE.read(parsed(json.dumps(SOURCE.write(source)))) == source


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"counters": (Buffer("c", f32, (2,)),)}, "are not i32"),
        ({"workspace": (Buffer("w", f32, (Var("n"),)),)}, "is not global memory of a fixed size"),
        ({"workspace": (Buffer("w", f32, (4,), Scope.SHARED),)}, "is not global memory of a fixed size"),
    ],
)
def test_invalid_workspace_and_counters(wrong: dict[str, object], why: str) -> None:
    plain = Kernel("plain", (), (), (), (), GpuLaunch((1,), 32))
    assert not list(flaws(plain, RULES))
    found = [f.why for _, f in flaws(plain.launched(**wrong), RULES)]
    assert any(why in text for text in found), found
