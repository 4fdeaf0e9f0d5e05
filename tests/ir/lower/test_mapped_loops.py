"""Task-mapped loops and distributed registers, lowered: the same values in plain loops and plain registers."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

import numpy as np
import pytest
from hypothesis import given, settings

from taskmap.ir.algebra.mapping import TaskMapping, from_function, repeat, spatial
from taskmap.ir.builder import Builder
from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.mapped_loops import DistributeRegisters, LowerMappedLoops, lower_mapped
from taskmap.ir.nodes import Buffer, Kernel, MappedFor, Var
from taskmap.ir.passes import run_pipeline
from taskmap.ir.printer import print_body
from taskmap.ir.script.read import kernel, register, thread
from taskmap.ir.types import f32, i64
from taskmap.ir.verify.rules import verify, verify_each
from tests.ir.algebra.mapping_strategies import compositions
from tests.ir.script.test_script import double_buffered, run

PASSES = (DistributeRegisters(), LowerMappedLoops())


def visits(mapping: TaskMapping) -> Kernel:
    """count[task] += 1 and order[worker, slot] = task number, for every worker of a mapping."""
    shape = mapping.task_shape
    order = Buffer("order", i64, (mapping.num_workers, mapping.num_slots, len(shape)))
    b = Builder()
    with b.loop("w", mapping.num_workers) as w:
        slot = b.allocate("slot", i64, (1,), init=0)
        with b.mapped([f"t{d}" for d in range(len(shape))], mapping, w) as task:
            for d, t in enumerate(task):
                b.store(order, (w, slot[0], d), t)
            b.store(slot, 0, slot[0] + 1)
    return Kernel("visits", (order,), (order,), (), b.body())


@settings(max_examples=40)
@given(compositions(2))
def test_a_lowered_loop_does_the_tasks_in_order(mapping: TaskMapping) -> None:
    before = visits(mapping)
    after = run_pipeline([LowerMappedLoops()], before, verify_each(), verify=True)
    results = [interpret(k, {})[k.outputs[0]] for k in (before, after)]
    np.testing.assert_array_equal(*results)
    assert [tuple(t) for t in results[1][0]] == mapping(0)


@pytest.mark.parametrize("sizes", [(8, 4, 4), (9, 5, 7)], ids=str)
def test_the_matmul_of_script_lowered(sizes: tuple[int, int, int]) -> None:
    gemm = double_buffered(rows=8, cols=4, depth=4, side=4)
    lowered = run_pipeline(PASSES, gemm, verify_each(), verify=True)
    m, n, k = sizes
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    np.testing.assert_array_equal(run(lowered, a, b, m=m, n=n, k=k), run(gemm, a, b, m=m, n=n, k=k))


def test_how_it_reads() -> None:
    owner = spatial(2, 2) * repeat(2, 2)

    @kernel(grid=(1,), threads=4)
    def fill(y: f32[4, 4]):
        tile = register(f32[4, 4], owner=owner)
        for i, j in owner.on(thread):
            tile[i, j] = 1.0
        for i, j in owner.on(thread):
            y[i, j] = tile[i, j]

    lowered = run_pipeline(PASSES, fill)
    verify(lowered)
    assert print_body(lowered.body[:2]) == (
        "tile = register(f32[4])\n"
        "for r0 in unroll(2):\n"
        "    for r1 in unroll(2):\n"
        "        i = thread // 2 * 2 + r0\n"
        "        j = thread % 2 * 2 + r1\n"
        "        tile[i % 2 * 2 + j % 2] = 1.0"
    )


def test_passes_leave_kernels_without_mappings_unchanged() -> None:
    plain = Kernel("k", (), (), (), ())
    assert run_pipeline(PASSES, plain) is plain


def test_a_function_with_several_tasks_each_cannot_be_lowered() -> None:
    uneven = from_function(lambda w: [(t,) for t in range(w + 1)], (4,), 4)
    with pytest.raises(Exception, match="function"):
        lower_mapped(MappedFor((Var("i"),), uneven, thread, ()))
