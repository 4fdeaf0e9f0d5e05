"""Every entry of the instruction table that computes or moves data agrees with its spec and its owners. One function
for each kind of entry; run by the simulator, or by a substitute. Needs no pytest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.cuda.tensor_map import MapParameter
from taskmap.backend.sim import run as sim
from taskmap.backend.sim.run import Policy
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.interp.instructions import distribute, execute
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import (
    ApproximationSpec,
    AsyncCopySpec,
    AtomicSpec,
    CachedMoveSpec,
    ConvertSpec,
    FragmentMoveSpec,
    MatMulSpec,
    MatrixMoveSpec,
    ShuffleSpec,
    TensorMoveSpec,
    VoteSpec,
    WarpReduceSpec,
)
from taskmap.ir.isa.table import INSTRUCTIONS
from taskmap.ir.types import DType, bf16, e4m3, f16, f32, i8, i32, i64, u8
from tests.backend.sim.instruction_runs import (
    C_TYPES,
    loaded,
    run_matrices,
    run_product,
    run_wgmma,
    stored,
    whole_numbers,
)
from tests.backend.sim.kernels import clean, kernel

Array = NDArray[Any]
Condition = Callable[[Any], bool]

ON_GPU = [i for i in INSTRUCTIONS if i.targets.kind == "cuda"]


@dataclass(frozen=True, slots=True)
class Check:
    """``function`` (store, entry, *variant) raises AssertionError if an entry does not follow its spec.

    shown: the entries among ``entries`` that a test suite runs, if others are written by the same rule. holders: it
    says which lane holds an element, which for opaque entries the simulator decides for itself.
    """

    name: str
    function: Callable[..., None]
    entries: tuple[Instruction, ...]
    shown: Condition
    variants: tuple[tuple[Any, ...], ...]
    holders: bool = False

    def cases(self, every: bool) -> Iterator[tuple[Instruction, tuple[Any, ...]]]:
        """Entries with variants; for entries that are not shown, only the last variant, if they are wanted."""
        for entry in self.entries:
            shown = self.shown(entry)
            for variant in self.variants if shown else self.variants[-1:] * every:
                yield entry, variant


CHECKS: list[Check] = []


def check(
    kind: type,
    condition: Condition = lambda i: True,
    *,
    shown: Condition = lambda i: True,
    variants: Sequence[tuple[Any, ...]] = ((),),
    holders: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The function checks entries of this kind that satisfy the condition."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        chosen = tuple(i for i in ON_GPU if isinstance(i.spec, kind) and condition(i))
        assert chosen
        CHECKS.append(Check(function.__name__, function, chosen, shown, tuple(variants), holders))
        return function

    return register


def is_wgmma(entry: Instruction) -> bool:
    return entry.completes == "wgmma"


def some_wgmma(entry: Instruction) -> bool:
    """One rule makes all n: every type with one n, f16 with the smallest and the largest, too."""
    return bool(re.search(r"m64n24k|m64n8k16_f16_f32|m64n256k16_f16_f32", entry.name))


def turns(entry: Instruction) -> bool:
    return is_wgmma(entry) and bool(re.search(r"m64n(24|128)k16_(bf16|f16)_f32", entry.name))


@check(MatMulSpec, lambda i: not is_wgmma(i), holders=True)
def products(store: KernelStore, entry: Instruction) -> None:
    constants = "<0, 1>" if entry.opaque else ""
    c, a, b, after = run_product(entry, store, constants)
    np.testing.assert_array_equal(after, execute(entry, c, a, b).astype(after.dtype))


@check(MatMulSpec, is_wgmma, shown=some_wgmma, variants=[(0,), (128,)])
def products_of_a_warpgroup(store: KernelStore, entry: Instruction, swizzle: int) -> None:
    assert isinstance(entry.spec, MatMulSpec)
    turned = (False, False) if entry.owner_a is None else (False,)
    c, a, b, after = run_wgmma(entry, store, swizzle, turned)
    np.testing.assert_array_equal(after, execute(entry, c, a, b).astype(after.dtype))


@check(MatMulSpec, turns, variants=[(0,), (32,), (64,), (128,)])
def transposed_operands_of_a_warpgroup(store: KernelStore, entry: Instruction, swizzle: int) -> None:
    for turned in ((True, True), (False, True), (True, False)) if entry.owner_a is None else ((True,),):
        c, a, b, after = run_wgmma(entry, store, swizzle, turned, accumulate=False)
        np.testing.assert_array_equal(after, execute(entry, np.zeros_like(c), a, b).astype(after.dtype))


@check(MatrixMoveSpec)
def matrices(store: KernelStore, entry: Instruction) -> None:
    assert isinstance(entry.spec, MatrixMoveSpec)
    for of in {1: (u8, e4m3), 2: (f16, bf16), 4: (f32, i32)}[entry.spec.bytes]:
        moved, arrived = run_matrices(entry, store, of=of)
        np.testing.assert_array_equal(arrived, execute(entry, moved))


@check(FragmentMoveSpec, variants=[(0,), (1,)], holders=True)
def fragments(store: KernelStore, entry: Instruction, by_columns: int) -> None:
    spec = entry.spec
    assert isinstance(spec, FragmentMoveSpec)
    assert entry.owner_c is not None
    rows, columns = spec.shape
    stride = 48
    kind, slots = C_TYPES[spec.dtype.name], entry.owner_c.num_slots
    tile = stored(whole_numbers(spec.dtype, spec.shape), spec.dtype)
    memory = np.zeros((columns if by_columns else rows, stride), tile.dtype)
    held = np.zeros((32, slots), tile.dtype)
    view = memory.T if by_columns else memory
    if spec.store:
        held[:] = distribute(tile, entry.owner_c)
    else:
        view[:rows, :columns] = tile
    body = f"  const int t = threadIdx.x;\n  alignas(8) {kind} r[{slots}];\n"
    body += f"  for (int i = 0; i < {slots}; i++) r[i] = h[t * {slots} + i];\n"
    body += f"  {entry.text}<{by_columns}>({'m, r' if spec.store else 'r, m'}, {stride});\n"
    body += f"  for (int i = 0; i < {slots}; i++) h[t * {slots} + i] = r[i];"
    source = kernel(body, f"tm_global<{kind}> m, tm_global<{kind}> h", threads=32)
    sim.run(source, [memory, held], store=store)
    np.testing.assert_array_equal(view[:rows, :columns], tile)
    np.testing.assert_array_equal(held, distribute(tile, entry.owner_c))


@check(AsyncCopySpec)
def asynchronous_copies(store: KernelStore, entry: Instruction) -> None:
    spec = entry.spec
    assert isinstance(spec, AsyncCopySpec)
    n = spec.bytes
    source_bytes = np.random.default_rng().integers(0, 256, 32 * n, np.uint8)
    result = np.zeros_like(source_bytes)
    count = f", t % {n + 1}" if spec.zero_fill else ""
    body = "  const int t = threadIdx.x;\n  tm_shared<unsigned char> s = tm_shared_at<unsigned char>(0);\n"
    body += f"  {entry.text}(s + t * {n}, a + t * {n}{count});\n  tm_cp_async_commit();\n  tm_cp_async_wait<0>();\n"
    body += f"  for (int i = 0; i < {n}; i++) b[t * {n} + i] = s[t * {n} + i];"
    parameters = "tm_global<const unsigned char> a, tm_global<unsigned char> b"
    clean(kernel(body, parameters, threads=32, shared=32 * n), [source_bytes, result], store, outputs=[1])
    for t in range(32):
        here = slice(t * n, t * n + n)
        want = execute(entry, source_bytes[here], *([t % (n + 1)] if spec.zero_fill else []))
        np.testing.assert_array_equal(result[here], want)


@check(CachedMoveSpec, variants=[(f32, 4), (f32, 1), (f16, 8), (f16, 1), (i8, 16), (i64, 2), (u8, 1)])
def cached_moves(store: KernelStore, entry: Instruction, of: DType, lanes: int) -> None:
    assert isinstance(entry.spec, CachedMoveSpec)
    kind = C_TYPES[of.name]
    a = stored(whole_numbers(of, (32 * lanes,)), of)
    b = np.zeros_like(a)
    if entry.spec.store:
        move = f"{entry.text}(b + t * {lanes}, tm_load<{lanes}>(a + t * {lanes}));"
    else:
        move = f"tm_store(b + t * {lanes}, {entry.text}<{lanes}>(a + t * {lanes}));"
    body = f"  const int t = threadIdx.x;\n  {move}"
    source = kernel(body, f"tm_global<const {kind}> a, tm_global<{kind}> b", threads=32)
    clean(source, [a, b], store, outputs=[1])
    np.testing.assert_array_equal(a, b)


def exchange(store: KernelStore, call: str, values: Array, kind: str, result: Array, returned: str) -> Array:
    """The value that each lane of a warp receives; `call` names a lane's value x and its number t."""
    body = f"  const int t = threadIdx.x;\n  const {kind} x = a[t];\n  r[t] = {call};"
    source = kernel(body, f"tm_global<const {kind}> a, tm_global<{returned}> r, tm_global<const int> o", threads=32)
    others = np.random.default_rng().integers(0, 40, 32).astype(np.int32)
    clean(source, [values, result, others], store, outputs=[1])
    return others


@check(ShuffleSpec, variants=[(of, width) for of in (f32, i64, f16, i8) for width in (2, 8, 32)])
def shuffles(store: KernelStore, entry: Instruction, of: DType, width: int) -> None:
    values = stored(whole_numbers(of, (32,)), of)
    result = np.zeros_like(values)
    kind = C_TYPES[of.name]
    others = exchange(store, f"{entry.text}<{width}>(x, o[t])", values, kind, result, kind)
    np.testing.assert_array_equal(result, execute(entry, width, values, others))


@check(VoteSpec, variants=[("none",), ("some",), ("all",)])
def votes(store: KernelStore, entry: Instruction, votes: str) -> None:
    assert isinstance(entry.spec, VoteSpec)
    ballots = {"none": np.zeros(32, bool), "some": np.arange(32) % 3 == 0, "all": np.ones(32, bool)}[votes]
    ballot = entry.spec.how == "ballot"
    result = np.zeros(32, np.int32 if ballot else np.bool_)
    elects = entry.spec.how == "elect"
    call = f"{entry.text}({'' if elects else 'x'})"
    exchange(store, call, ballots, "bool", result, "int" if ballot else "bool")
    np.testing.assert_array_equal(result, execute(entry, *(() if elects else (ballots,))))


@check(WarpReduceSpec)
def reductions(store: KernelStore, entry: Instruction) -> None:
    values = np.random.default_rng().integers(-(2**31), 2**31, 32).astype(np.int32)
    result = np.zeros(32, np.int32)
    exchange(store, f"{entry.text}(x)", values, "int", result, "int")
    np.testing.assert_array_equal(result, execute(entry, values))


@check(ConvertSpec)
def conversions(store: KernelStore, entry: Instruction) -> None:
    values = np.random.default_rng().standard_normal(32).astype(np.float32)
    result = np.zeros_like(values)
    exchange(store, f"{entry.text}(x)", values, "float", result, "float")
    np.testing.assert_array_equal(result, execute(entry, values))


@check(ApproximationSpec)
def approximations(store: KernelStore, entry: Instruction) -> None:
    """Over the whole range, including subnormal numbers and NaN."""
    spec = entry.spec
    assert isinstance(spec, ApproximationSpec)
    chance = np.random.default_rng()
    values = (chance.choice([-1, 1], 32) * np.exp2(chance.uniform(-140, 7, 32))).astype(np.float32)
    values[:6] = 0, np.inf, -np.inf, np.nan, 1e-40, -126.5
    result = np.zeros_like(values)
    exchange(store, f"{entry.text}(x)", values, "float", result, "float")
    expected = execute(entry, values)
    np.testing.assert_allclose(result, expected, rtol=spec.error, atol=0)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


@check(AtomicSpec, variants=[(True,), (False,)])
def atomics(store: KernelStore, entry: Instruction, alone: bool) -> None:
    """Each thread at positions of its own; or many at one, in any order, if the order does not change the sum."""
    check_atomic(store, entry, np.random.default_rng().permutation(64) if alone else places_of_many(), alone)


def places_of_many() -> Array:
    return np.random.default_rng().integers(0, 4, 64)


def check_atomic(store: KernelStore, entry: Instruction, chosen: Array, exact: bool) -> None:
    """``chosen``: the position of each of 64 threads. exact: compare previous values, too, and order-dependent results;
    only the simulator runs the first thread in ascending order first."""
    spec = entry.spec
    assert isinstance(spec, AtomicSpec)
    n, kind = spec.lanes, C_TYPES[spec.dtype.name]
    memory = whole_numbers(spec.dtype, (64 * n,))
    raw = stored(memory, spec.dtype)
    places = chosen.astype(np.int32) * n
    count = 2 if spec.op == "cas" else 1
    values = [whole_numbers(spec.dtype, (64, n)) for _ in range(count)]
    given = [stored(v, spec.dtype) for v in values]
    before = np.zeros((64, n), raw.dtype)
    names = ["v", "w"][:count]
    load = "{}[t]" if n == 1 else "tm_load<" + str(n) + ">({} + t * " + str(n) + ")"
    call = f"{entry.text}({'s' if spec.shared else 'm'} + p[t], {', '.join(load.format(x) for x in names)})"
    store_old = f"b[t] = {call};" if n == 1 else f"tm_store(b + t * {n}, {call});"
    body = "  const int t = threadIdx.x;\n"
    if spec.shared:
        body += f"  tm_shared<{kind}> s = tm_shared_at<{kind}>(0);\n"
        body += f"  for (int i = t; i < {64 * n}; i += 64) s[i] = m[i];\n  tm_barrier();\n"
    body += f"  {store_old if spec.returns else call + ';'}\n"
    if spec.shared:
        body += f"  tm_barrier();\n  for (int i = t; i < {64 * n}; i += 64) m[i] = s[i];"
    parameters = f"tm_global<{kind}> m, tm_global<{kind}> b, tm_global<const int> p"
    parameters += "".join(f", tm_global<const {kind}> {x}" for x in names)
    source = kernel(body, parameters, threads=64, shared=64 * n * spec.dtype.bytes if spec.shared else 0)
    sim.run(source, [raw, before, places, *given], store=store)
    after, was = execute(entry, memory, places, *values)
    if exact or spec.op not in ("exch", "cas"):
        np.testing.assert_array_equal(loaded(raw, spec.dtype), after.astype(loaded(raw, spec.dtype).dtype))
    if spec.returns and exact:
        np.testing.assert_array_equal(loaded(before, spec.dtype), was.astype(loaded(before, spec.dtype).dtype))


SHAPES: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    1: ((100,), (64,), (56,)),
    2: ((20, 96), (8, 32), (-8, 15)),
    3: ((5, 9, 32), (2, 4, 32), (-8, 7, -1)),
    4: ((3, 4, 5, 40), (2, 2, 3, 16), (32, 3, -1, 2)),
    5: ((2, 3, 2, 3, 24), (1, 2, 2, 2, 8), (16, 2, 1, 2, 1)),
}
"""By rank: the shape of a tensor, of a box, and coordinates that reach beyond the tensor, the innermost first,
which is a multiple of 16 bytes. Stores
take their magnitudes."""


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[d + 1 :], dtype=int)) for d in range(len(shape)))


@check(TensorMoveSpec, lambda i: not i.spec.multicast, variants=[(0,), (32,), (64,), (128,)])
def boxes_of_tensors(store: KernelStore, entry: Instruction, swizzle: int) -> None:
    spec = entry.spec
    assert isinstance(spec, TensorMoveSpec)
    shape, box, at = SHAPES[spec.rank]
    if spec.kind != "load":
        at = tuple(map(abs, at))
    if swizzle:
        box = (*box[:-1], swizzle // f16.bytes)
    tensor = whole_numbers(f16, shape).astype(np.float16)
    count = int(np.prod(box))
    image = whole_numbers(f16, (count,)).astype(np.float16)
    described = MapParameter(0, f16, shape, strides_of(shape), box, swizzle)
    coordinates = ", ".join(map(str, at))
    body = f"""\
  tm_shared<tm_f16> s = tm_shared_at<tm_f16>(0, {count});
  tm_shared<long long> full = tm_shared_at<long long>({count * 2 + 8 & ~7}, 1);
  const int t = threadIdx.x;
"""
    if spec.kind == "load":
        body += f"""\
  if (t == 0) {{ tm_mbarrier_init(full, 1); tm_fence_mbarrier_init(); }}
  tm_barrier();
  if (t == 0) {{
    tm_mbarrier_arrive_expect_tx(full, {count * 2});
    {entry.text}(s, m, full, {coordinates});
  }}
  tm_mbarrier_wait(full, 0);
  for (int i = t; i < {count}; i += 32) b[i] = s[i];"""
    else:
        body += f"""\
  for (int i = t; i < {count}; i += 32) s[i] = b[i];
  tm_fence_proxy_async();
  tm_barrier();
  if (t == 0) {{
    {entry.text}(m, s, {coordinates});
    tm_tma_commit();
    tm_tma_wait<0>();
  }}"""
    parameters = "tm_global<tm_f16> a, tm_global<tm_f16> b, const __grid_constant__ tm_tensor_map m"
    source = kernel(body, parameters, threads=32, shared=count * 2 + 16, maps=(described,))
    before = tensor.copy()
    policies: tuple[Policy, ...] = ("late", "early")
    for policy in policies:
        tensor[:] = before
        sim.run(source, [tensor, image], policy=policy, store=store)
        if spec.kind == "load":
            np.testing.assert_array_equal(image, execute(entry, before, box, at, 2, swizzle))
        else:
            np.testing.assert_array_equal(tensor, execute(entry, before, box, at, image, 2, swizzle))


@check(TensorMoveSpec, lambda i: i.spec.multicast)
def boxes_for_several_blocks(store: KernelStore, entry: Instruction) -> None:
    assert isinstance(entry.spec, TensorMoveSpec)
    shape, box, at = SHAPES[entry.spec.rank]
    tensor = whole_numbers(f16, shape).astype(np.float16)
    count = int(np.prod(box))
    images = np.zeros((4, count), np.float16)
    body = f"""\
  tm_shared<tm_f16> s = tm_shared_at<tm_f16>(0, {count});
  tm_shared<long long> full = tm_shared_at<long long>({count * 2 + 8 & ~7}, 1);
  const int t = threadIdx.x;
  if (t == 0) {{
    tm_mbarrier_init(full, 1);
    tm_fence_mbarrier_init();
    if (tm_cluster_rank() != 2) tm_mbarrier_arrive_expect_tx(full, {count * 2});
  }}
  tm_cluster_arrive();
  tm_cluster_wait();
  if (t == 0 && tm_cluster_rank() == 1) {entry.text}(s, m, full, 11, {", ".join(map(str, at))});
  if (tm_cluster_rank() == 2) return;
  tm_mbarrier_wait(full, 0);
  for (int i = t; i < {count}; i += 32) b[blockIdx.x * {count} + i] = s[i];"""
    parameters = "tm_global<tm_f16> a, tm_global<tm_f16> b, const __grid_constant__ tm_tensor_map m"
    maps = (MapParameter(0, f16, shape, strides_of(shape), box),)
    source = kernel(body, parameters, threads=32, grid=(4,), shared=count * 2 + 16, cluster=(4, 1, 1), maps=maps)
    sim.run(source, [tensor, images], store=store)
    for rank in (0, 1, 3):
        np.testing.assert_array_equal(images[rank], execute(entry, tensor, box, at, 2))
    assert not images[2].any()
