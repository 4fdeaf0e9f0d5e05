"""Layouts: addresses, equality, injectivity, composition, permutation, swizzles, shape:stride notation."""

import itertools
import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.layout import Layout, blocked, column_major, padded, row_major, strided
from taskmap.ir.algebra.mapping import from_function, repeat, replicate, spatial
from taskmap.ir.errors import IndexOutOfRangeError, LayoutError, MappingError
from taskmap.ir.nodes import Var
from tests.ir.algebra.mapping_strategies import Symbol, compositions, value_of

SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


def addresses(layout: Layout) -> dict[tuple[int, ...], int]:
    return {at: layout(*at) for at in itertools.product(*map(range, layout.shape))}


@st.composite
def layouts(draw: st.DrawFn, rank: int) -> Layout:
    """Layouts of every kind, with and without gaps, sharing and padding."""
    shape = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    kind = draw(st.sampled_from(["row", "column", "padded", "strided", "blocked", "product", "permuted", "swizzled"]))
    if kind == "row":
        return row_major(*shape)
    if kind == "column":
        return column_major(*shape)
    if kind == "padded" and rank:
        return padded(*shape, pad=draw(st.integers(0, 3)))
    if kind == "strided":
        return strided(shape, tuple(draw(st.integers(0, 7)) for _ in shape))
    if kind == "blocked" and rank:
        letters = "ABC"[:rank]
        inner = draw(st.lists(st.tuples(st.integers(2, 4), st.sampled_from(letters.lower())), max_size=2))
        order = draw(st.permutations(letters))
        return blocked("".join(order) + "".join(f"{n}{at}" for n, at in inner), *shape, logical=letters)
    if kind == "product":
        return row_major(*shape) * column_major(*(draw(st.integers(1, 3)) for _ in shape))
    if kind == "permuted":
        return row_major(*shape).permute(*draw(st.permutations(range(rank))))
    bits = draw(st.integers(0, 2))
    return row_major(*shape).swizzled(bits, draw(st.integers(0, 2)), max(1, bits) + draw(st.integers(0, 1)))


RANKS = st.integers(0, 3)


@given(SHAPES)
def test_row_and_column_major_number_the_elements(shape: tuple[int, ...]) -> None:
    assert list(addresses(row_major(*shape)).values()) == list(range(math.prod(shape)))
    backwards = {at[::-1]: address for at, address in addresses(row_major(*shape[::-1])).items()}
    assert addresses(column_major(*shape)) == backwards


def test_padded_and_strided() -> None:
    assert padded(64, 8, pad=1)(3, 2) == 29
    assert padded(64, 8, pad=1).size == 64 * 9
    assert strided((4, 3), (1, 100))(2, 2) == 202
    assert strided((4, 3), (1, 100)).size == 204
    assert padded(64, 8, pad=1).strides == (9, 1)


@given(st.integers(1, 2), st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.data())
def test_nchw16c(n: int, c: int, h: int, w: int, data: st.DataObject) -> None:
    layout = blocked("NCHW16c", n, c, h, w)
    at = tuple(data.draw(st.integers(0, extent - 1)) for extent in (n, c, h, w))
    blocks = -(-c // 16)
    assert layout(*at) == (((at[0] * blocks + at[1] // 16) * h + at[2]) * w + at[3]) * 16 + at[1] % 16
    assert layout.size == n * blocks * h * w * 16
    assert layout.is_injective
    assert layout.is_bijective == (c % 16 == 0)


def test_blocked_twice_and_channels_last() -> None:
    weight = blocked("OIHW16i16o", 32, 48, 3, 3)
    assert weight(17, 35, 2, 1) == (((1 * 3 + 2) * 3 + 2) * 3 + 1) * 256 + 3 * 16 + 1
    vnni = blocked("OI4i16o4i", 16, 32)
    assert vnni(5, 9) == (2 * 16 + 5) * 4 + 1
    channels_last = blocked("NHWC", 2, 3, 4, 5, logical="NCHW")
    assert channels_last(1, 2, 3, 4) == ((1 * 4 + 3) * 5 + 4) * 3 + 2
    assert channels_last == row_major(2, 4, 5, 3).permute(0, 3, 1, 2)
    inner_first = blocked("4cC", 8)
    assert [inner_first(c) for c in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]


@given(st.data(), RANKS)
def test_addresses_lie_below_size_and_checks_are_true(data: st.DataObject, rank: int) -> None:
    layout = data.draw(layouts(rank))
    found = list(addresses(layout).values())
    assert all(0 <= address < layout.size for address in found)
    assert layout.is_injective == (len(set(found)) == len(found))
    assert layout.is_bijective == (sorted(found) == list(range(layout.size)))


@given(st.data(), RANKS)
def test_equality_and_hash_are_by_meaning(data: st.DataObject, rank: int) -> None:
    f, g = data.draw(layouts(rank)), data.draw(layouts(rank))
    means_the_same = f.shape == g.shape and f.size == g.size and addresses(f) == addresses(g)
    assert (f == g) == means_the_same
    assert not means_the_same or hash(f) == hash(g)


def test_the_same_addresses_written_differently_are_equal() -> None:
    assert row_major(64, 8) == strided((64, 8), (8, 1)) == padded(64, 8, pad=0)
    assert row_major(8, 1) == column_major(8, 1)
    assert row_major(64, 8) != column_major(64, 8)
    assert row_major(1, 4, 7, 7) * row_major(1, 16, 1, 1) == blocked("NCHW16c", 1, 64, 7, 7)
    assert row_major(4, 4).swizzled(2, 0, 4) == row_major(4, 4)  # no address has a bit to mix in
    assert row_major(8, 8).swizzled(3, 0, 3) != row_major(8, 8)
    assert blocked("NC16c", 1, 20) == padded(1, 20, pad=12)
    assert row_major(0, 4) == column_major(0, 4)
    assert row_major(4) != (4,)


@given(st.data(), st.integers(0, 2))
def test_composition_is_blocks(data: st.DataObject, rank: int) -> None:
    f, g = data.draw(layouts(rank)), data.draw(layouts(rank))
    try:
        composed = f * g
    except LayoutError:
        return
    for at in itertools.product(*map(range, composed.shape)):
        outer = [i // d for i, d in zip(at, g.shape, strict=True)]
        inner = [i % d for i, d in zip(at, g.shape, strict=True)]
        assert composed(*at) == f(*outer) * g.size + g(*inner)
    assert composed.size == f.size * g.size


def test_composition_of_swizzles() -> None:
    tile = row_major(8, 8).swizzled(3, 0, 3)
    tiles = row_major(2, 2) * tile
    assert tiles(9, 3) == row_major(2, 2)(1, 0) * 64 + tile(1, 3)
    swizzled_tiles = tile * row_major(1, 4)
    assert swizzled_tiles(3, 9) == tile(3, 2) * 4 + 1
    with pytest.raises(LayoutError, match="mixed with each other"):
        _ = row_major(2, 2) * row_major(6, 8).swizzled(3, 0, 3)
    with pytest.raises(LayoutError, match="not a power of two"):
        _ = tile * row_major(1, 3)


def test_composition_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(LayoutError, match="1 and 2 dimensions"):
        _ = row_major(4) * row_major(2, 2)
    with pytest.raises(LayoutError, match="symbolic"):
        _ = row_major(4) * row_major(Var("n"))
    with pytest.raises(LayoutError, match="partly filled"):
        _ = row_major(2, 2) * blocked("AB8a", 12, 2)
    with pytest.raises(TypeError):
        _ = row_major(4) * 2  # type: ignore[operator]


@given(st.data(), st.integers(1, 3))
def test_permuted_dimensions(data: st.DataObject, rank: int) -> None:
    layout = data.draw(layouts(rank))
    order = data.draw(st.permutations(range(rank)))
    permuted = layout.permute(*order)
    for at in addresses(permuted):
        original = [0] * rank
        for position, dim in enumerate(order):
            original[dim] = at[position]
        assert permuted(*at) == layout(*original)
    with pytest.raises(LayoutError, match="named once"):
        layout.permute(*[0] * (rank + 1))


def test_swizzle_is_cutes() -> None:
    """CuTe's Swizzle<3, 3, 3> on 64 columns of f16: 16-byte chunk c of row r moves to chunk c ^ (r % 8)."""
    layout = row_major(64, 64).swizzled(3, 3, 3)
    for row, column in itertools.product(range(64), range(64)):
        assert layout(row, column) == row * 64 + (column // 8 ^ row % 8) * 8 + column % 8
    assert layout.is_bijective


@pytest.mark.parametrize(("bits", "base", "shift"), [(3, 0, 2), (-1, 0, 3), (1, -1, 3), (0, 0, 0)])
def test_a_swizzle_that_is_no_bijection_is_refused(bits: int, base: int, shift: int) -> None:
    with pytest.raises(LayoutError, match="could share an address"):
        row_major(64, 64).swizzled(bits, base, shift)


def test_swizzled_once() -> None:
    with pytest.raises(LayoutError, match="swizzled already"):
        row_major(64, 64).swizzled(3, 3, 3).swizzled(3, 3, 3)


@given(st.data(), RANKS)
def test_symbolic_coordinates(data: st.DataObject, rank: int) -> None:
    layout = data.draw(layouts(rank))
    names = [f"i{dim}" for dim in range(rank)]

    def xor(a: Symbol | int, b: Symbol | int) -> Symbol:
        return Symbol(lambda values: value_of(a, values) ^ value_of(b, values))

    address = layout(*map(Symbol.named, names), xor=xor)
    for at, expected in addresses(layout).items():
        assert value_of(address, dict(zip(names, at, strict=True))) == expected


def test_symbolic_extents() -> None:
    n, k = Symbol.named("n"), Symbol.named("k")
    values = {"n": 7, "k": 40}
    for symbolic, concrete in [
        (row_major(n, k, 3), row_major(7, 40, 3)),
        (column_major(n, k, 3), column_major(7, 40, 3)),
        (padded(n, k, 3, pad=2), padded(7, 40, 3, pad=2)),
        (strided((n, k, 3), (k * 3, 3, 1)), strided((7, 40, 3), (120, 3, 1))),
        (blocked("NKC16k", n, k, 3, logical="NKC"), blocked("NKC16k", 7, 40, 3, logical="NKC")),
        (row_major(n, k, 1) * row_major(2, 4, 3), row_major(7, 40, 1) * row_major(2, 4, 3)),
    ]:
        assert value_of(symbolic(5, 37, 2), values) == concrete(5, 37, 2)
        assert value_of(symbolic(Symbol.named("i"), 37, 2), {**values, "i": 5}) == concrete(5, 37, 2)
        assert value_of(symbolic.size, values) == concrete.size


def test_symbolic_extents_of_the_ir() -> None:
    n = Var("n")
    assert row_major(4, n) == row_major(4, n)
    assert hash(row_major(4, n)) == hash(row_major(4, n))
    assert row_major(4, n) != row_major(4, Var("n"))
    assert str(row_major(4, n)(1, 2)) != ""
    for ask in (lambda: row_major(4, n).is_injective, lambda: row_major(4, n).is_bijective, row_major(4, n).draw):
        with pytest.raises(LayoutError, match="symbolic"):
            ask()


def test_no_element_outside() -> None:
    for at in [(4, 0), (0, -1), (0,), (0, 0, 0)]:
        with pytest.raises(IndexOutOfRangeError, match="its shape is 4×3"):
            row_major(4, 3)(*at)


def test_empty_and_scalar_layouts() -> None:
    assert row_major(0, 4).size == 0
    assert row_major(0, 4).is_bijective
    assert strided((3, 0), (4, 1)).size == 0
    assert row_major(0) * row_major(2) == row_major(0) == (row_major(0) * row_major(2)).permute(0)
    assert row_major()() == 0
    assert row_major().size == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: row_major(-1),
        lambda: row_major(2.0),
        lambda: padded(pad=1),
        lambda: padded(4, pad=-1),
        lambda: strided((4, 4), (1,)),
        lambda: strided((4,), (-1,)),
        lambda: blocked("", 1),
        lambda: blocked("NC0c", 1, 1),
        lambda: blocked("NN", 1, 1),
        lambda: blocked("NC", 1),
        lambda: blocked("NC4d", 1, 4),
        lambda: blocked("NHWC", 1, 3, 4, 4, logical="NCHX"),
        lambda: blocked("16c", 4),
    ],
)
def test_invalid_layouts_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(LayoutError, match=r"is not a layout|does not describe"):
        make()


def test_listing_a_huge_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix, "LARGEST", 1000)
    with pytest.raises(LayoutError, match="more than 1000 elements"):
        _ = strided((1000, 2), (2, 3)).is_injective
    assert not strided((1000, 2), (2, 0)).is_injective
    with pytest.raises(LayoutError, match="more than 1000 elements"):
        _ = row_major(64, 64).swizzled(3, 3, 3) == row_major(64, 64).swizzled(2, 3, 3)


@given(st.data(), RANKS)
def test_repr_evaluates_to_the_layout(data: st.DataObject, rank: int) -> None:
    layout = data.draw(layouts(rank))
    names = {f.__name__: f for f in (row_major, column_major, padded, strided, blocked)}
    assert eval(repr(layout), dict(names)) == layout


def test_strides() -> None:
    assert row_major(4, 1, 3).strides == (3, 0, 1)
    for layout in (blocked("NCW16c", 1, 32, 2), row_major(64, 64).swizzled(3, 3, 3)):
        with pytest.raises(LayoutError, match="has no strides"):
            _ = layout.strides


@pytest.mark.parametrize(
    ("layout", "notation"),
    [
        (row_major(64, 8), "(64,8):(8,1)"),
        (column_major(64, 8), "(64,8):(1,64)"),
        (padded(64, 8, pad=1), "(64,8):(9,1)"),
        (row_major(8), "(8):(1)"),
        (row_major(8, 1), "(8,1):(1,0)"),
        (blocked("NCW16c", 2, 64, 2), "(2,(16,4),2):(128,(1,32),16)"),
        (row_major(), "():()"),
    ],
)
def test_shape_stride_of_layouts(layout: Layout, notation: str) -> None:
    assert str(layout.shape_stride()) == notation


@given(st.data(), RANKS)
def test_shape_stride_gives_the_same_addresses(data: st.DataObject, rank: int) -> None:
    layout = data.draw(layouts(rank))
    try:
        notation = layout.shape_stride()
    except LayoutError:
        return
    assert all(notation(*at) == address for at, address in addresses(layout).items())


def test_shape_stride_is_refused_where_it_does_not_exist() -> None:
    with pytest.raises(LayoutError, match="a swizzle combines address bits by xor"):
        row_major(64, 64).swizzled(3, 3, 3).shape_stride()
    with pytest.raises(LayoutError, match="dimension 1 has 20 elements in blocks that hold 32"):
        blocked("NCW16c", 1, 20, 2).shape_stride()


def test_shape_stride_of_mappings_is_cutes() -> None:
    """CUTLASS, mma_traits_sm80.hpp: the thread-value layouts of SM80_16x8x16 (A, B and C), column-major in the tile.

    B is stated there as N×K, hence the transposed tile.
    """
    owner_a = repeat(2, 2, order=(1, 0)) * spatial(8, 4) * repeat(1, 2)
    owner_b = repeat(2, 1) * spatial(4, 8, order=(1, 0)) * repeat(2, 1)
    owner_c = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    assert str(owner_a.shape_stride()) == "((4,8),(2,2,2)):((32,1),(16,8,128))"
    assert str(owner_b.shape_stride(row_major(16, 8))) == "((4,8),(2,2)):((16,1),(8,64))"
    assert str(owner_c.shape_stride()) == "((4,8),(2,2)):((32,1),(16,8))"
    assert str(repeat(4).shape_stride()) == "(1,4):(0,1)"
    assert str((replicate(2, rank=1) * spatial(4)).shape_stride()) == "((4,2),1):((1,0),0)"


@given(st.data(), RANKS)
def test_shape_stride_of_a_mapping_through_a_layout(data: st.DataObject, rank: int) -> None:
    mapping, layout = data.draw(compositions(rank)), data.draw(layouts(rank))
    try:
        notation = mapping.shape_stride(layout)
    except LayoutError:
        return
    for worker in range(mapping.num_workers):
        for slot, task in enumerate(mapping(worker)):
            assert notation(worker, slot) == layout(*task)


def test_shape_stride_through_blocks() -> None:
    channels = blocked("NCW16c", 2, 64, 2)
    pairs = spatial(2, 32, 1) * repeat(1, 2, 1)
    assert str(pairs.shape_stride(channels)) == "((8,4,2),2):((2,32,128),1)"
    with pytest.raises(LayoutError, match="do not fit its blocks of 16"):
        (spatial(1, 16, 1) * repeat(1, 3, 1)).shape_stride(blocked("NCW16c", 1, 48, 2))


def test_shape_stride_of_mappings_that_do_not_fit() -> None:
    with pytest.raises(LayoutError, match="do not index a layout of shape 4"):
        spatial(8).shape_stride(row_major(4))
    with pytest.raises(LayoutError, match="do not index"):
        spatial(8).shape_stride(row_major(8, 1))
    with pytest.raises(LayoutError, match="xor"):
        spatial(64, 64).shape_stride(row_major(64, 64).swizzled(3, 3, 3))
    with pytest.raises(MappingError, match="given by a function"):
        from_function(lambda worker: [(worker,)], (4,), 4).shape_stride()


def test_xor_of_an_expression_without_it_is_the_callers() -> None:
    layout = row_major(64, 64).swizzled(3, 3, 3)
    with pytest.raises(TypeError):
        layout(Symbol.named("i"), 0)
    assert layout(5, 9, xor=operator.xor) == layout(5, 9)
