"""Micro-kernels as leaves: values before and after lowering, text as functions of a kernel, and definitions refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate as generate_c
from taskmap.backend.cuda.codegen import generate as generate_cuda
from taskmap.decompose import (
    BLOCK,
    CORE,
    FRAGMENT,
    GLOBAL,
    KERNEL,
    LOCAL,
    REGISTER,
    SHARED,
    THREAD,
    WARP,
    MatMul,
    MicroKernel,
    Move,
    Strategy,
    dim,
    micro_kernel,
)
from taskmap.ir import repeat, spatial
from taskmap.ir.analysis.key import kernel_key
from taskmap.ir.errors import ScheduleError, ScriptError
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.table import instruction_named
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Invoke
from taskmap.ir.printer import print_kernel
from taskmap.ir.script.read import script
from taskmap.ir.target import cpu_target, gpu_named
from taskmap.ir.types import f16, f32
from taskmap.ir.visit import walk_stmts
from tests.ir.decompose.micro_scripts import by_lanes, idle, looping, outer, products, spoiling, waiting
from tests.ir.decompose.test_kernels import K, M, N, multiply

HELD, SOME = (REGISTER, REGISTER, REGISTER), (SHARED, SHARED, REGISTER)
MMA = instruction_named("mma_m16n8k16_f16_f32")
OWNERS: Any = {"a": MMA.owner_a, "b": MMA.owner_b, "c": MMA.owner_c}
PTX = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32\n  {$c}, {$a}, {$b}, {$c};"
FROM_SHARED = """\
for (int i = 0; i < 4; i++)
  for (int j = 0; j < 4; j++)
    c[i * 4 + j] += a[i * a_m] * b[j * b_n];"""
LOOPS = """\
for (i64 k = 0; k < 4; k++)
  for (i64 i = 0; i < 4; i++)
    for (i64 j = 0; j < 8; j++)
      c[i * c_m + j * c_n] += a[i * a_m + k * a_k] * b[k * b_k + j * b_n];"""


def tensor_cores(**options: Any) -> MicroKernel:
    """An instruction of tensor cores in PTX."""
    spec = MatMul(16, 8, 16, a=f16, b=f16)
    return micro_kernel(PTX, spec, WARP, HELD, language="ptx", owners=OWNERS, isa="sm_80", **options)


def by_threads(leaf: MicroKernel, *, registers: bool) -> Strategy:
    """Tiles of 4×4 for each of 32 threads."""
    tree = MatMul(M, N, K).tile(16, 32).to(BLOCK).accumulate_in(REGISTER).split(4)
    tree = tree.move("a", SHARED).storage("column").pad(1).move("b", SHARED).tile(4, 4).to(THREAD).split(1)
    return (tree.move("a", REGISTER).move("b", REGISTER) if registers else tree).done(leaf)


def by_warps(leaf: MicroKernel) -> Strategy:
    """Two warps with tensor cores."""
    tree = MatMul(M, N, K, a=f16, b=f16).tile(32, 16).to(BLOCK).accumulate_in(REGISTER).split(16)
    tree = tree.move("a", SHARED).move("b", SHARED).tile(16, 16).to(WARP).move("a", REGISTER).move("b", REGISTER)
    return tree.tile(16, 8).done(leaf)


@pytest.mark.parametrize("shape", [(16, 32, 4), (17, 33, 5)])
def test_a_script_function_of_a_thread(shape: tuple[int, int, int]) -> None:
    leaf = micro_kernel(outer, MatMul(4, 4, 1), THREAD, HELD)
    assert str(leaf) == "outer: MatMul(4,4,1)(RF,RF,RF)(Thread)"
    tree = by_threads(leaf, registers=True)
    assert "MatMul(4,4,1)(RF,RF,RF)(Thread)              .done(outer)" in str(tree)
    assert f"{leaf.instruction.name}(a_register[" in print_kernel(tree.kernel())
    assert tree.mapping("c") == by_threads(leaf, registers=True).mapping("c")
    assert tree.mapping("c").num_slots == 16
    multiply(tree, shape)


def test_text_is_executed_by_its_twin_or_by_its_spec() -> None:
    for twin in (outer, None):
        leaf = micro_kernel(
            FROM_SHARED, MatMul(4, 4, 1), THREAD, (SHARED, SHARED, REGISTER), language="cuda", twin=twin
        )
        assert leaf.instruction.spec.counted is (twin is not None)  # type: ignore[union-attr]  # of a micro-kernel
        multiply_unlowered(by_threads(leaf, registers=False), (17, 33, 5))


def test_lanes_exchange_what_a_spec_reads() -> None:
    multiply_unlowered(by_warps(tensor_cores()), (33, 17, 20))


def multiply_unlowered(tree: Strategy, shape: tuple[int, int, int]) -> None:
    """The product by the interpreter alone: text cannot be executed after lowering."""
    rng = np.random.default_rng(0)
    m, n, k = shape
    kinds = [np.dtype(o.dtype.name.replace("f", "float")) for o in tree.root.operands]
    a, b = (rng.integers(-4, 5, s).astype(t) for s, t in zip(((m, k), (k, n)), kinds, strict=False))
    kernel = tree.kernel(m=m, n=n, k=k)
    found = interpret(kernel, dict(zip(kernel.buffers, (a, b), strict=False)))[kernel.buffers[2]]
    np.testing.assert_array_equal(found, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("places", [(GLOBAL, GLOBAL, REGISTER), (GLOBAL, LOCAL, REGISTER)])
def test_a_script_function_of_a_core(places: Any) -> None:
    leaf = micro_kernel(products, MatMul(3, 8, 4), CORE, places)
    tree = MatMul(M, N, K).tile(3, 8).to(CORE).accumulate_in(REGISTER).split(4)
    tree = tree.move("b", LOCAL) if places[1] is LOCAL else tree
    multiply(tree.done(leaf), (7, 17, 9))


def test_a_copy_by_a_micro_kernel() -> None:
    leaf = micro_kernel(by_lanes, Move(f32[32, 4]), WARP, (GLOBAL, SHARED))
    tree = MatMul(64, 16, 16).tile(32, 16).to(BLOCK).accumulate_in(REGISTER).split(4)
    block = micro_kernel(by_lanes, Move(f32[32, 4]), BLOCK, (GLOBAL, SHARED), name="rows")
    done = tree.move("a", SHARED, lambda copy: copy.done(block)).tile(4, 4).to(THREAD).split(1).tile(1, 1).done()
    assert leaf.instruction.name != block.instruction.name
    multiply(done, (64, 16, 16))


def test_text_becomes_a_function_of_the_kernel() -> None:
    ptx = by_warps(tensor_cores(name='my "mma" // \u2713*/'))
    target = gpu_named("H200")
    text = generate_cuda(lower(ptx.kernel(), target=target, verify=True), target).text
    name = re.search(r"TM_FN void (\w+)\(const tm_f16 \*a, const tm_f16 \*b, float \*c\)", text)
    assert name is not None
    assert name[1].startswith("tm_matmul_")
    assert text.count(name[1]) == 2
    assert '"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};' in text
    assert 'mma"' not in text
    cuda = micro_kernel(FROM_SHARED, MatMul(4, 4, 1), THREAD, SOME, language="cuda")
    text = generate_cuda(lower(by_threads(cuda, registers=False).kernel(), target=target, verify=True), target).text
    assert FROM_SHARED in text
    assert re.search(r"\(a_shared \+ .*, b_shared \+ .*, total, 1, 17, 32, 1\);", text)
    plain = micro_kernel(LOOPS, MatMul(4, 8, 4), CORE, (GLOBAL, GLOBAL, REGISTER), language="c", name="plain")
    tree = MatMul(M, N, K).tile(4, 8).to(CORE).accumulate_in(REGISTER).split(4).done(plain)
    c = generate_c(lower(tree.kernel(), target=cpu_target("avx2", 2), verify=True)).text
    assert LOOPS in c
    assert c.count("static inline __attribute__((always_inline)) void") == 1


def test_ptx_names_registers_and_addresses() -> None:
    text = "{ .reg .f32 %x; ld.shared.f32 %x, [$a]; fma.rn.f32 $c0, %x, $b0, $c0; } // $$"
    leaf = micro_kernel(text, MatMul(1, 1, 1), THREAD, (SHARED, REGISTER, REGISTER), language="ptx")
    tree = MatMul(M, N, K).tile(4, 8).to(BLOCK).accumulate_in(REGISTER).split(1).move("a", SHARED)
    tree = tree.tile(1, 1).to(THREAD).move("b", REGISTER).done(leaf)
    target = gpu_named("H200")
    cuda = generate_cuda(lower(tree.kernel(), target=target), target).text
    assert '"{ .reg .f32 %%x; ld.shared.f32 %%x, [%1]; fma.rn.f32 %0, %%x, %2, %0; } // $\\n\\t"' in cuda
    assert '"r"(tm_shared_address(a))' in cuda
    multiply_unlowered(tree, (16, 16, 4))


def test_the_code_counts_in_names_and_keys() -> None:
    one = micro_kernel(FROM_SHARED, MatMul(4, 4, 1), THREAD, SOME, language="cuda")
    same = micro_kernel(FROM_SHARED, MatMul(4, 4, 1), THREAD, SOME, language="cuda")
    other = micro_kernel(FROM_SHARED + " ", MatMul(4, 4, 1), THREAD, SOME, language="cuda")
    keys = [kernel_key(by_threads(leaf, registers=False).kernel()) for leaf in (one, same, other)]
    assert keys[0] == keys[1] != keys[2]
    leaf = micro_kernel(outer, MatMul(4, 4, 1), THREAD, HELD)
    assert leaf.instruction.name != micro_kernel(outer, MatMul(4, 2, 1), THREAD, HELD).instruction.name
    (called,) = [s for s in walk_stmts(by_threads(leaf, registers=True).kernel().body) if isinstance(s, Invoke)]
    assert called.instruction is leaf.instruction


SPEC = MatMul(4, 4, 1)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a level": (lambda: micro_kernel(outer, SPEC, KERNEL, HELD), "a kernel is not a group of workers that"),
    "a symbolic size": (lambda: micro_kernel(outer, MatMul(4, 4, dim("k")), THREAD, HELD), "has a symbolic size"),
    "places": (lambda: micro_kernel(outer, SPEC, THREAD, (REGISTER,)), "the operands a, b, c, and 1 memories"),
    "fragments": (lambda: micro_kernel(outer, SPEC, THREAD, (FRAGMENT,) * 3), "cannot take operands in FR"),
    "shared on a CPU": (lambda: micro_kernel(outer, SPEC, CORE, (SHARED,) * 3), "cannot take operands in SH"),
    "owners missing": (
        lambda: micro_kernel(PTX, MatMul(16, 8, 16), WARP, HELD, language="ptx"),
        "nobody knows which of 32 lanes holds which element of a",
    ),
    "owners of a thread": (
        lambda: micro_kernel(outer, SPEC, THREAD, HELD, owners={"a": repeat(4, 1)}),
        "a is not distributed over lanes",
    ),
    "owners of another size": (
        lambda: micro_kernel(PTX, MatMul(16, 8, 16), WARP, HELD, language="ptx", owners={"a": spatial(4, 8)}),
        "gives [4, 8] to 32 workers; a is [16, 16]",
    ),
    "registers of a block": (lambda: micro_kernel(outer, SPEC, BLOCK, HELD), "registers of a whole block"),
    "a function": (lambda: micro_kernel(multiply, SPEC, THREAD, HELD), "neither a script function nor text"),  # type: ignore[arg-type]
    "no language": (
        lambda: micro_kernel("c[0] = 0;", SPEC, THREAD, HELD),
        "text of a thread is CUDA C++ or PTX, not ''",
    ),
    "C of a thread": (lambda: micro_kernel("", SPEC, THREAD, HELD, language="c"), "is CUDA C++ or PTX, not C"),
    "PTX of a core": (lambda: micro_kernel("", SPEC, CORE, HELD, language="ptx"), "text of a core is C, not PTX"),
    "a name": (lambda: micro_kernel("mov $d, $c0;", SPEC, THREAD, HELD, language="ptx"), "$d is no operand"),
    "a dollar": (lambda: micro_kernel("mov $, $c0;", SPEC, THREAD, HELD, language="ptx"), "a $ stands for nothing"),
    "an instruction set": (lambda: micro_kernel(outer, SPEC, CORE, HELD, isa="sm_80"), "instruction set of a core"),
    "a barrier": (lambda: micro_kernel(waiting, SPEC, THREAD, HELD), "waiting waits for the whole block"),
    "a written input": (lambda: micro_kernel(spoiling, SPEC, THREAD, HELD), "spoiling writes a, and"),
    "a loop": (lambda: micro_kernel(looping, SPEC, CORE, HELD), "looping indexes a by the variable of a loop"),
    "no result": (lambda: micro_kernel(idle, SPEC, THREAD, HELD), "idle does not write c"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_definition_that_cannot_be(name: str) -> None:
    make, says = WRONG[name]
    with pytest.raises(ScheduleError, match=re.escape(says)) as caught:
        make()
    assert "test_micro_kernels.py:" in str(caught.value)


def test_an_error_of_the_script_is_at_its_line() -> None:
    @script
    def wrong(a: Any, b: Any, c: Any) -> None:
        c[0, 0] += a[0, 0, 0]

    with pytest.raises(ScriptError, match=r"a\[0, 0, 0\]"):
        micro_kernel(wrong, SPEC, THREAD, HELD)
