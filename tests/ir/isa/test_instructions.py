"""The instruction table: every entry behaves as its spec and owners say, in the interpreter and in C."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import LoadedKernels, compile_kernels
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.algebra.mapping import from_function, replicate, spatial
from taskmap.ir.construct import ramp
from taskmap.ir.errors import CodegenError, InputError, VerifyError
from taskmap.ir.interp.instructions import Array, collect, distribute, execute
from taskmap.ir.interp.run import interpret
from taskmap.ir.isa.table import (
    INSTRUCTIONS,
    Instruction,
    MatMulSpec,
    MoveSpec,
    at_least,
    instruction_named,
    instructions_for,
    only,
)
from taskmap.ir.nodes import Buffer, Intrinsic, Kernel, Store
from taskmap.ir.target import GPUS, GpuTarget, Target, cpu_target
from taskmap.ir.types import bf16, boolean, f16, f32, f64, i16
from taskmap.ir.verify.rules import LOWERED, RULES, verify
from tests.ir.isa.instruction_kernels import arguments, kernel_of, lowered_with, random_array, reference
from tests.schedules.running import call_kernel, isas


def distinct(entries: Iterable[Instruction]) -> list[Instruction]:
    """The entries without most of wgmma, a plain product of shapes and types: every type, but only three n."""
    shown = ("n24k", "m64n8k16_f16_f32", "m64n256k16_f16_f32")
    return [i for i in entries if "wgmma_m64" not in i.family or any(n in i.family for n in shown)]


ON_CPU = [i for i in INSTRUCTIONS if i.targets.kind == "cpu" and not i.family]
"""The rows and moves, which specs are lowered to; test_dots has the others."""
TOLERANCE = {"f64": 1e-13, "f32": 1e-5, "f16": 1e-2, "bf16": 1e-1}

every = pytest.mark.parametrize("entry", distinct(INSTRUCTIONS), ids=lambda i: i.name)
products = pytest.mark.parametrize(
    "entry", distinct(i for i in INSTRUCTIONS if isinstance(i.spec, MatMulSpec)), ids=lambda i: i.name
)
on_cpu = pytest.mark.parametrize("entry", ON_CPU, ids=lambda i: i.name)


def newest_target(entry: Instruction) -> Target | None:
    """The best target of this machine that has the instruction."""
    return next((t for t in (cpu_target(isa, 1) for isa in isas()) if entry.targets(t)), None)


def check(entry: Instruction, got: Array, want: Array) -> None:
    if got.dtype.kind == "f":
        limit = TOLERANCE[entry.operands[0][0].name]
        np.testing.assert_allclose(got, want, rtol=limit, atol=limit)
    else:
        np.testing.assert_array_equal(got, want)


def test_names_are_unique() -> None:
    assert len({i.name for i in INSTRUCTIONS}) == len(INSTRUCTIONS)


@every
def test_owners_hold_every_element_of_their_operands(entry: Instruction) -> None:
    spec = entry.spec
    if isinstance(spec, MatMulSpec):
        shapes = {"c": (spec.m, spec.n), "a": (spec.m, spec.k), "b": (spec.k, spec.n)}
        owners = {"c": entry.owner_c, "a": entry.owner_a, "b": entry.owner_b}
        assert {x: owner.task_shape for x, owner in owners.items() if owner} == {
            x: shapes[x] for x in shapes if owners[x]
        }
    for dtype, owner in entry.operands:
        assert owner.num_workers == entry.workers
        assert owner.is_covering
        shared = entry.name.startswith("quad_mma") and owner is not entry.owner_c  # by two quad-pairs
        assert owner.is_partition or entry.opaque or shared
        assert owner.num_slots * dtype.bits % 32 == 0 or entry.workers == 1


@products
def test_spec_and_owners_alone_give_the_product(entry: Instruction) -> None:
    spec = entry.spec
    assert isinstance(spec, MatMulSpec)
    rng = np.random.default_rng()
    shapes = ((spec.c, (spec.m, spec.n)), (spec.a, (spec.m, spec.k)), (spec.b, (spec.k, spec.n)))
    c, a, b = (random_array(t, shape, rng, whole=True) for t, shape in shapes)
    owners = (entry.owner_c, entry.owner_a, entry.owner_b)
    given = [x if owner is None else distribute(x, owner) for x, owner in zip((c, a, b), owners, strict=True)]
    assert all(x.shape[0] == entry.workers for x, owner in zip(given, owners, strict=True) if owner)
    assert entry.owner_c is not None
    got = collect(execute(entry, *given), entry.owner_c)
    np.testing.assert_array_equal(got, c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64))


@on_cpu
def test_the_interpreter_runs_it(entry: Instruction) -> None:
    kernel = kernel_of(entry)
    lowered = lowered_with(entry, cpu_target("avx512", 1))
    verify(lowered, RULES)
    verify(lowered, LOWERED)
    arrays = arguments(entry, np.random.default_rng())
    results = [
        interpret(k, {b: x if k is kernel else x.ravel() for b, x in zip(k.buffers, arrays, strict=False)})[
            k.outputs[0]
        ].ravel()
        for k in (kernel, lowered)
    ]
    np.testing.assert_array_equal(results[1], results[0])
    check(entry, results[0], reference(entry, arrays).ravel())


@lru_cache(maxsize=1)
def binaries() -> dict[Instruction, tuple[KernelSource, LoadedKernels]]:
    """Every entry that this machine has, compiled together."""
    targets = {entry: target for entry in ON_CPU if (target := newest_target(entry)) is not None}
    sources = {e: generate(lowered_with(e, target), target.vector_bytes) for e, target in targets.items()}
    loaded: dict[Instruction, tuple[KernelSource, LoadedKernels]] = {}
    for isa in dict.fromkeys(target.isa for target in targets.values()):
        wanted = {e: s for e, s in sources.items() if targets[e].isa == isa}
        toolchain = find_toolchain(isa=isa)
        unit = compile_kernels(list(wanted.values()), toolchain, KernelStore(), Counters())
        loaded.update({entry: (source, unit) for entry, source in wanted.items()})
    return loaded


@on_cpu
def test_its_c_computes_the_same(entry: Instruction) -> None:
    if newest_target(entry) is None:
        pytest.skip(f"this machine is older than {entry.targets}")
    source, loaded = binaries()[entry]
    arrays = arguments(entry, np.random.default_rng())
    (got,) = call_kernel(kernel_of(entry), source, loaded[source.symbol], arrays, {})
    check(entry, got, reference(entry, arrays))


def names(target: Target, spec: MatMulSpec | MoveSpec) -> list[str]:
    return [i.name for i in instructions_for(target, spec).instructions]


WMMA = ("m16n16k16", "m32n8k16", "m8n32k16")


def gpu(isa: str) -> GpuTarget:
    return replace(GPUS["A100"], isa=isa)


def test_the_best_comes_first() -> None:
    whole = MatMulSpec(6, 64, 100, f32, f32, f32)
    assert names(cpu_target("avx512", 1), whole) == ["fma_f32x16", "fma_f32x8", "fma_f32x4", "fma_f32x2"]
    assert names(cpu_target("avx2", 1), whole) == ["fma_f32x8", "fma_f32x4", "fma_f32x2"]
    assert names(cpu_target("avx512", 1), replace(whole, n=7)) == ["fma_f32x4", "fma_f32x2"]
    assert names(cpu_target("generic", 1), MoveSpec(100, f64)) == ["move_f64x2"]
    large = MatMulSpec(64, 64, 64, bf16, bf16, f32)
    ampere = ["mma_m16n8k16_bf16_f32", "mma_m16n8k8_bf16_f32", *(f"wmma_mma_{s}_bf16_f32" for s in WMMA)]
    assert names(gpu("sm_80"), large) == names(gpu("sm_120"), large) == names(gpu("sm_90"), large) == ampere
    hopper = names(gpu("sm_90a"), large)
    assert hopper[:2] == ["wgmma_m64n64k16_bf16_f32", "wgmma_ra_m64n64k16_bf16_f32"]
    assert hopper[16:] == ampere


@pytest.mark.parametrize(
    ("target", "spec", "reason"),
    [
        (cpu_target("avx512", 1), MatMulSpec(8, 8, 8, i16, i16, f32), "no instruction does i16 × i16 → f32"),
        (cpu_target("avx512", 1), MatMulSpec(16, 8, 16, f16, f16, f32), "cpu:avx512 has no .* takes cuda:sm_80 or"),
        (gpu("sm_75"), MatMulSpec(16, 8, 16, bf16, bf16, f32), "cuda:sm_75 has no instruction for bf16 × bf16 → f32"),
        (gpu("sm_80"), MatMulSpec(16, 8, 4, f16, f16, f32), "smaller than the smallest .* matmul 16×8×8"),
        (cpu_target("generic", 1), MatMulSpec(4, 1, 4, f32, f32, f32), "smaller than the smallest"),
        (cpu_target("generic", 1), MoveSpec(1, boolean), "smaller than the smallest"),
    ],
)
def test_reasons_for_finding_no_instruction(target: Target, spec: MatMulSpec | MoveSpec, reason: str) -> None:
    found = instructions_for(target, spec)
    assert found.instructions == ()
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)


def test_at_least() -> None:
    assert at_least("avx2")(cpu_target("avx512", 1))
    assert not at_least("avx2")(cpu_target("generic", 1))
    assert at_least("sm_80")(gpu("sm_100"))
    assert not at_least("sm_90")(gpu("sm_86"))
    assert not at_least("generic")(gpu("sm_100"))
    assert at_least("sm_90")(gpu("sm_90a"))


def test_additions_of_an_architecture_are_specific_to_it() -> None:
    assert only("sm_90a")(gpu("sm_90a"))
    assert not only("sm_90a")(gpu("sm_90"))
    assert not only("sm_90a")(gpu("sm_100a"))
    assert str(only("sm_90a", "sm_100a")) == "cuda:sm_90a or cuda:sm_100a"
    with pytest.raises(InputError, match="no target is newer than sm_90a"):
        at_least("sm_90a")


def test_an_entry_is_found_by_its_name() -> None:
    assert instruction_named("ldmatrix_x4").workers == 32
    with pytest.raises(InputError, match=r"no instruction 'ldmatrix_x3'\n.*ldmatrix_x4"):
        instruction_named("ldmatrix_x3")


def test_workers_that_share_an_element_must_agree() -> None:
    shared = spatial(1, 2) * replicate(2, rank=2)
    np.testing.assert_array_equal(collect(np.array([[1.0], [1.0], [2.0], [2.0]]), shared), [[1.0, 2.0]])
    with pytest.raises(InputError, match="worker 1 holds"):
        collect(np.array([[1.0], [3.0], [2.0], [2.0]]), shared)


def applied(entry: Instruction, lanes: int) -> Kernel:
    """A lowered kernel that applies an instruction to vectors of a number of lanes."""
    x, y = Buffer("x", f32, (64,)), Buffer("y", f32, (64,))
    vector = ramp(0, 1, lanes)
    value = Intrinsic(entry, (x[vector], x[0], x[vector]), f32, lanes)
    return Kernel("k", (x, y), (y,), (), (Store(y, (vector,), value),))


def test_registers_of_a_wrong_size_are_refused() -> None:
    entry = next(i for i in INSTRUCTIONS if i.name == "fma_f32x8")
    verify(applied(entry, 8))
    with pytest.raises(VerifyError, match="fma_f32x8 takes registers of 8 × f32, 1 × f32, 8 × f32, not of 4 × f32"):
        verify(applied(entry, 4))


def test_an_instruction_of_a_gpu_is_not_written_in_c() -> None:
    mma = instruction_named("mma_m16n8k16_f16_f32")
    with pytest.raises(CodegenError, match="mma_m16n8k16_f16_f32 cannot be written in C"):
        generate(applied(mma, 4))
    kernel = applied(mma, 4)
    with pytest.raises(VerifyError, match="32 workers"):
        interpret(kernel, {kernel.buffers[0]: np.zeros(64, np.float32)})


def test_an_entry_that_is_written_wrongly_is_noticed() -> None:
    entry = next(i for i in INSTRUCTIONS if i.name == "fma_f32x4")
    wrong = replace(entry, text="({c} - tm_splat_f32x4({a}) * {b})")
    target = newest_target(wrong)
    assert target is not None
    source = generate(lowered_with(wrong, target), target.vector_bytes)
    loaded = compile_kernels([source], find_toolchain(isa=target.isa), KernelStore(), Counters())
    arrays = arguments(wrong, np.random.default_rng())
    (got,) = call_kernel(kernel_of(wrong), source, loaded[source.symbol], arrays, {})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(wrong, got, reference(wrong, arrays))


def test_an_owner_that_lowering_cannot_follow_is_not_used() -> None:
    entry = next(i for i in INSTRUCTIONS if i.name == "fma_f32x4")
    backwards = from_function(lambda w: [(0, 3 - j) for j in range(4)], (1, 4), 1)
    with pytest.raises(AssertionError):
        lowered_with(replace(entry, owner_b=backwards), cpu_target("avx512", 1))
