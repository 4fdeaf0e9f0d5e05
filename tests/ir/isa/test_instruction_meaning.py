"""The numpy semantics of instructions other than products: matrices, copies, tensor boxes, shuffles, votes, atomics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taskmap.ir.errors import InputError, TypeMismatchError
from taskmap.ir.interp.instructions import collect, distribute, execute
from taskmap.ir.isa.float_rounding import round_operand
from taskmap.ir.isa.table import INSTRUCTIONS, instruction_named
from taskmap.ir.isa.tma_box import load_box, store_box
from taskmap.ir.isa.wgmma_descriptor import Descriptor, decode, swizzled
from taskmap.ir.types import DType, bf16, e4m3, e5m2, f16, f32, tf32

RNG = np.random.default_rng()
LANES = np.arange(32)


def test_ordering_instructions_have_no_value() -> None:
    for name in ("fence_gpu", "cp_async_commit", "mbarrier_wait", "cluster_arrive", "setmaxnreg_inc"):
        with pytest.raises(InputError, match=f"{name}.* does not compute or move anything"):
            execute(instruction_named(name))


# ---- Matrices and copies


@pytest.mark.parametrize("name", [i.name for i in INSTRUCTIONS if i.family == "ldmatrix"])
def test_matrices_go_to_registers_and_back(name: str) -> None:
    load, store = instruction_named(name), instruction_named(name.replace("ld", "st", 1))
    assert load.owner_c is not None
    rows = RNG.standard_normal(load.owner_c.task_shape).astype(np.float32)
    registers = execute(load, rows)
    assert registers.shape == (32, load.parameters[0].count)
    np.testing.assert_array_equal(execute(store, registers), rows)


def test_a_transposed_matrix() -> None:
    rows = np.arange(64.0).reshape(8, 8)
    plain, turned = (execute(instruction_named(f"ldmatrix_x1{how}"), x) for how, x in (("_trans", rows), ("", rows.T)))
    np.testing.assert_array_equal(plain, turned)


@pytest.mark.parametrize("shape", ["m16n16k16", "m32n8k16", "m8n32k16"])
@pytest.mark.parametrize(("t", "c"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("i8", "i32"), ("u8", "i32")])
def test_opaque_fragments_are_used_consistently(shape: str, t: str, c: str) -> None:
    """Loaded, multiplied and stored, they give the product."""
    a, b, total = (instruction_named(f"wmma_load_{x}_{shape}_{d}") for x, d in (("a", t), ("b", t), ("c", c)))
    product, store = (
        instruction_named(f"wmma_mma_{shape}_{'_'.join((t, c))}"),
        instruction_named(f"wmma_store_{shape}_{c}"),
    )
    tiles = []
    for entry in (total, a, b):
        assert entry.owner_c is not None
        assert entry.opaque
        tiles.append(RNG.integers(0, 4, entry.owner_c.task_shape).astype(np.float32 if "f" in t else np.int32))
    held = [execute(entry, tile) for entry, tile in zip((total, a, b), tiles, strict=True)]
    got = execute(store, execute(product, *held))
    np.testing.assert_array_equal(got, tiles[0] + tiles[1] @ tiles[2])
    # PTX ISA, "wmma.load": 16 elements of f16 operands, all others once.
    assert [x.shape[1] * 32 for x in held] == [256] + [512 if t == "f16" else tile.size for tile in tiles[1:]]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies(size: int) -> None:
    source = RNG.integers(1, 256, size).astype(np.uint8)
    np.testing.assert_array_equal(execute(instruction_named(f"cp_async_{size}"), source), source)
    for copied in range(size + 1):
        got = execute(instruction_named(f"cp_async_zfill_{size}"), source, copied)
        np.testing.assert_array_equal(got, [*source[:copied], *[0] * (size - copied)])


# ---- Boxes of tensors


Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Shape, box, coordinates (innermost first), swizzle, for elements of 4 bytes."""


@st.composite
def boxes(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    inner = swizzle // 4 or draw(st.sampled_from((4, 8, 12)))
    box = (*(draw(st.integers(1, 4)) for _ in range(rank - 1)), inner)
    shape = (*(draw(st.integers(1, 5)) for _ in range(rank - 1)), draw(st.integers(1, 40)))
    inner_at = 4 * draw(st.integers(-3, 3))  # 16 bytes
    return shape, box, (inner_at, *(draw(st.integers(-6, 6)) for _ in range(rank - 1))), swizzle


@given(boxes())
@settings(deadline=None, max_examples=60)
def test_a_box_holds_the_tensor_and_zeros_around_it(case: Case) -> None:
    shape, box, coordinates, swizzle = case
    tensor = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    entry = instruction_named(f"tma_load_{len(shape)}d")
    shared = execute(entry, tensor, box, coordinates, 4, swizzle)
    for place, index in enumerate(np.ndindex(*box)):
        at = tuple(i + c for i, c in zip(index, reversed(coordinates), strict=True))
        inside = all(0 <= i < n for i, n in zip(at, shape, strict=True))
        assert shared[swizzled(4 * place, swizzle) // 4] == (tensor[at] if inside else 0)


@given(boxes())
@settings(deadline=None, max_examples=60)
def test_stored_boxes_are_loaded_again(case: Case) -> None:
    shape, box, coordinates, swizzle = case
    coordinates = tuple(map(abs, coordinates))  # nothing is stored to what is before a tensor
    tensor = np.zeros(shape, np.float32)
    shared = np.arange(1, np.prod(box) + 1, dtype=np.float32)
    stored = execute(instruction_named(f"tma_store_{len(shape)}d"), tensor, box, coordinates, shared, 4, swizzle)
    added = execute(instruction_named(f"tma_reduce_add_{len(shape)}d"), stored, box, coordinates, shared, 4, swizzle)
    np.testing.assert_array_equal(added, 2 * stored)
    again = load_box(stored, box, coordinates, 4, swizzle)
    np.testing.assert_array_equal(again[again != 0], shared[again != 0])
    assert np.count_nonzero(again) == np.count_nonzero(stored)


@pytest.mark.parametrize(
    ("box", "coordinates", "bytes", "swizzle", "why"),
    [
        ((4, 3), (0, 0), 4, 0, "rows have 12 bytes"),
        ((4, 8), (0, 0), 4, 128, "rows have 32 bytes, but the swizzle spans 128"),
        ((257, 8), (0, 0), 4, 0, "each extent is 1 to 256"),
        ((4, 8), (0,), 4, 0, "1 to 5 of each"),
        ((4, 4), (0, 0), 4, 16, "there is no swizzle of 16"),
        ((4, 8), (-3, 0), 2, 0, "begins -6 bytes into a row"),
    ],
)
def test_boxes_that_tma_cannot_copy(
    box: tuple[int, ...], coordinates: tuple[int, ...], bytes: int, swizzle: int, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        load_box(np.zeros((8, 8)), box, coordinates, bytes, swizzle)


# ---- Operands of wgmma


@given(
    st.integers(0, 1 << 14),
    st.integers(0, (1 << 14) - 1),
    st.integers(0, (1 << 14) - 1),
    st.sampled_from((0, 32, 64, 128)),
)
@settings(deadline=None, max_examples=50)
def test_a_descriptor_decodes_to_its_fields(start: int, leading: int, stride: int, swizzle: int) -> None:
    descriptor = Descriptor(start % (1 << 14) * 16, leading * 16, stride * 16, swizzle)
    assert decode(descriptor.encode()) == descriptor
    assert descriptor.encode() < 1 << 64


@pytest.mark.parametrize(("start", "leading", "swizzle"), [(8, 0, 0), (0, 1 << 18, 128), (0, 0, 16)])
def test_descriptors_that_cannot_be(start: int, leading: int, swizzle: int) -> None:
    with pytest.raises(InputError):
        Descriptor(start, leading, 0, swizzle)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("bytes", [1, 2, 4])
def test_a_tma_box_is_an_operand_of_wgmma(swizzle: int, bytes: int) -> None:
    """Rows of k as wide as the swizzle, 64 of them: stride is eight rows, and the start moves along k."""
    width, k = swizzle // bytes, 32 // bytes
    tensor = np.arange(64 * width).reshape(64, width)
    shared = load_box(tensor, (64, width), (0, 0), bytes, swizzle)
    for step in range(width // k):
        operand = Descriptor(1024 + 32 * step, 0, 8 * swizzle, swizzle)
        for row, column in ((0, 0), (1, 0), (7, k - 1), (8, 1), (63, k // 2)):
            at = operand.address(row, column, bytes) - 1024
            assert shared[at // bytes] == tensor[row, step * k + column]


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_box_with_m_contiguous_is_a_transposed_operand(swizzle: int) -> None:
    """Boxes of `swizzle` bytes of m and 16 k, one after another; the next eight k are eight rows further on."""
    width, rows, k = swizzle // 2, 128, 16
    tensor = np.arange(k * rows).reshape(k, rows)
    boxes = [load_box(tensor, (k, width), (first, 0), 2, swizzle) for first in range(0, rows, width)]
    shared = np.concatenate(boxes)
    operand = Descriptor(0, k * swizzle, 8 * swizzle, swizzle)
    for row in range(0, rows, 5):
        for column in range(k):
            assert shared[operand.address(row, column, 2, transposed=True) // 2] == tensor[column, row]


def test_operands_without_a_swizzle_are_made_of_core_matrices() -> None:
    """Core matrices of eight rows of 16 bytes: those along k `leading` apart, those along the rows `stride` apart."""
    operand = Descriptor(0, 128, 256, 0)
    assert operand.address(0, 7, 2) == 14
    assert operand.address(1, 0, 2) == 16
    assert operand.address(0, 8, 2) == 128
    assert operand.address(8, 0, 2) == 256
    turned = Descriptor(0, 128, 256, 0)
    assert turned.address(7, 0, 2, transposed=True) == 14
    assert turned.address(0, 1, 2, transposed=True) == 16
    assert turned.address(8, 0, 2, transposed=True) == 256
    assert turned.address(0, 8, 2, transposed=True) == 128


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_swizzle_is_its_own_inverse_and_keeps_chunks(swizzle: int) -> None:
    for address in range(0, 4096, 4):
        assert swizzled(swizzled(address, swizzle), swizzle) == address
        assert swizzled(address, swizzle) - swizzled(address // 16 * 16, swizzle) == address % 16


# ---- Warps


def test_shuffles() -> None:
    values = RNG.integers(0, 1000, 32)
    for width in (2, 4, 8, 16, 32):
        first = LANES // width * width
        got = {
            h: execute(instruction_named(f"shuffle_{h}"), width, values, np.full(32, 1))
            for h in ("idx", "up", "down", "xor")
        }
        np.testing.assert_array_equal(got["idx"], values[first + 1])
        np.testing.assert_array_equal(got["up"], [values[x - 1] if x % width else values[x] for x in LANES])
        np.testing.assert_array_equal(got["down"], [values[x + 1] if (x + 1) % width else values[x] for x in LANES])
        np.testing.assert_array_equal(got["xor"], values[LANES ^ 1])
    # A butterfly beyond its segment: earlier lanes are read, later ones are not.
    far = execute(instruction_named("shuffle_xor"), 8, values, np.full(32, 8))
    np.testing.assert_array_equal(far, [values[x ^ 8] if x & 8 else values[x] for x in LANES])


def test_a_butterfly_sums_a_warp() -> None:
    values = RNG.integers(-100, 100, 32).astype(np.int32)
    total = values
    for mask in (16, 8, 4, 2, 1):
        total = total + execute(instruction_named("shuffle_xor"), 32, total, np.full(32, mask))
    np.testing.assert_array_equal(total, execute(instruction_named("warp_reduce_add_i32"), values))
    assert total[0] == values.sum()


def test_votes() -> None:
    votes = RNG.integers(0, 2, 32).astype(np.bool_)
    votes[0], votes[31] = True, False
    assert execute(instruction_named("vote_any"), votes).all()
    assert not execute(instruction_named("vote_all"), votes).any()
    ballot = execute(instruction_named("ballot"), votes)
    assert ballot.dtype == np.int32
    assert [bool(int(ballot[5]) >> lane & 1) for lane in range(32)] == votes.tolist()
    assert execute(instruction_named("ballot"), ~votes)[0] < 0
    assert execute(instruction_named("elect")).sum() == 1
    with pytest.raises(InputError, match="needs a vote"):
        execute(instruction_named("vote_any"))


@pytest.mark.parametrize("op", ["min", "max", "and", "or", "xor"])
def test_reductions_of_a_warp(op: str) -> None:
    values = RNG.integers(-1000, 1000, 32).astype(np.int32)
    got = execute(instruction_named(f"warp_reduce_{op}_i32"), values)
    name = {"min": "minimum", "max": "maximum"}.get(op, f"bitwise_{op}")
    np.testing.assert_array_equal(got, np.full(32, getattr(np, name).reduce(values)))


# ---- Atomics


def test_atomic_sums() -> None:
    memory, places = np.zeros(4, np.int32), RNG.integers(0, 4, 100)
    values = RNG.integers(-9, 9, (100, 1)).astype(np.int32)
    after, before = execute(instruction_named("atomic_add_i32"), memory, places, values)
    np.testing.assert_array_equal(after, [values[places == p].sum() for p in range(4)])
    assert before[0] == 0
    last = np.flatnonzero(places == places[0])[-1]
    assert before[last] + values[last] == after[places[0]]


def test_atomics_of_neighbours_round_each_sum() -> None:
    memory = np.array([1.0, 2048.0], np.float16)
    after, _ = execute(instruction_named("red_add_f16x2"), memory, np.array([0]), np.ones((1, 2), np.float16))
    np.testing.assert_array_equal(after, [2.0, 2048.0])
    wide = np.array([256.0, 0.0], np.float32)
    after, _ = execute(instruction_named("atomic_add_bf16x2"), wide, np.array([0]), np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(after, [256.0, 1.0])


def test_compare_and_swap_stores_once() -> None:
    memory, workers = np.array([7], np.int64), 5
    expected = np.full((workers, 1), 7, np.int64)
    values = np.arange(10, 10 + workers, dtype=np.int64)[:, None]
    after, before = execute(
        instruction_named("atomic_cas_i64_shared"), memory, np.zeros(workers, int), expected, values
    )
    assert after[0] == 10
    assert before.ravel().tolist() == [7, 10, 10, 10, 10]


def test_atomic_extremes_and_exchange() -> None:
    memory, places = np.array([3], np.int32), np.zeros(3, int)
    values = np.array([[5], [-2], [4]], np.int32)
    found = {
        op: execute(instruction_named(f"atomic_{op}_i32"), memory, places, values) for op in ("min", "max", "exch")
    }
    assert {op: int(after[0]) for op, (after, _) in found.items()} == {"min": -2, "max": 5, "exch": 4}
    assert found["exch"][1].ravel().tolist() == [3, 5, -2]
    assert memory[0] == 3


# ---- Floats of tensor instructions


def fp8_values(mantissa: int, exponents: int, bias: int, largest: float) -> NDArray[np.float64]:
    """Every finite magnitude of an 8-bit float, from the definition."""
    values = {0.0}
    for exponent in range(2**exponents):
        for m in range(2**mantissa):
            fraction = m / 2**mantissa
            values.add(2.0 ** (1 - bias) * fraction if exponent == 0 else 2.0 ** (exponent - bias) * (1 + fraction))
    return np.array(sorted(v for v in values if v <= largest))


@pytest.mark.parametrize(
    ("kind", "values"),
    [(e4m3, fp8_values(3, 4, 7, 448.0)), (e5m2, fp8_values(2, 5, 15, 57344.0))],
    ids=["e4m3", "e5m2"],
)
def test_rounding_to_eight_bits(kind: DType, values: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(round_operand(values, kind), values)
    x = np.exp2(RNG.uniform(-20, 18, 2000)) * RNG.choice([-1, 1], 2000)
    got = round_operand(x, kind)
    nearest = values[np.abs(np.abs(np.float32(x))[:, None].astype(np.float64) - values).argmin(1)]
    np.testing.assert_array_equal(np.abs(got), nearest)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
    # Halfway between neighbours, the even mantissa: every second value.
    halfway = (values[:-1] + values[1:]) / 2
    even = np.where(np.arange(len(halfway)) % 2 == 0, values[:-1], values[1:])
    np.testing.assert_array_equal(round_operand(halfway, kind), even)
    special = round_operand(np.array([np.inf, -np.inf, np.nan, 1e9, -0.0]), kind)
    np.testing.assert_array_equal(special[:4], [values[-1], -values[-1], np.nan, values[-1]])
    assert np.signbit(special[4])


def test_rounding_to_tf32() -> None:
    def rounded(x: float) -> float:
        return float(round_operand(np.asarray(x, np.float32), tf32))

    assert rounded(1 + 2**-11) == 1 + 2**-10  # a tie goes away from 0
    assert rounded(-1 - 2**-11) == -1 - 2**-10
    assert rounded(1 + 2**-12) == 1
    x = RNG.standard_normal(1000).astype(np.float32)
    assert (np.abs(round_operand(x, tf32) - x) <= np.abs(x) * 2**-11).all()
    assert (round_operand(x, tf32).view(np.uint32) % (1 << 13) == 0).all()
    np.testing.assert_array_equal(execute(instruction_named("round_tf32"), x), round_operand(x, tf32))
    assert np.isinf(rounded(np.inf))
    assert np.isnan(rounded(np.nan))


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_other_types_are_rounded_elsewhere(dtype: DType) -> None:
    with pytest.raises(TypeMismatchError, match="not a type that only tensor instructions have"):
        round_operand(np.ones(1), dtype)


def test_a_store_of_matrices_undoes_its_distribution() -> None:
    owner = instruction_named("stmatrix_x2").owner_c
    assert owner is not None
    tile = RNG.standard_normal(owner.task_shape)
    np.testing.assert_array_equal(collect(distribute(tile, owner), owner), tile)


def test_no_box_is_stored_before_the_beginning_of_a_tensor() -> None:
    with pytest.raises(InputError, match="before the tensor"):
        store_box(np.zeros((8, 8), np.float32), (2, 4), (4, -1), np.zeros(8, np.float32), 4)


def test_store_box_keeps_elements_outside_the_box() -> None:
    tensor = RNG.standard_normal((4, 12)).astype(np.float32)
    stored = store_box(tensor, (2, 4), (4, 1), np.zeros(8, np.float32), 4)
    assert np.count_nonzero(stored != tensor) == 8
    assert (stored[1:3, 4:8] == 0).all()
