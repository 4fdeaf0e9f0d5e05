"""The laws of task mappings, each on random mappings."""

import functools
import itertools
import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.mapping import TaskMapping, from_function, repeat, replicate, spatial
from taskmap.ir.errors import IndexOutOfRangeError, MappingError
from tests.ir.algebra.mapping_strategies import compositions, mappings

RANKS = st.integers(0, 3)


def every_task(mapping: TaskMapping) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, mapping.task_shape)))


def lists(mapping: TaskMapping) -> list[list[tuple[int, ...]]]:
    return [mapping(worker) for worker in range(mapping.num_workers)]


def composed_by_the_definition(f: TaskMapping, g: TaskMapping) -> list[list[tuple[int, ...]]]:
    """(f * g)(w) = [t_f ⊙ d_g + t_g for t_f in f(w div n_g) for t_g in g(w mod n_g)], word for word."""
    d, n = g.task_shape, g.num_workers
    return [
        [tuple(a * e + b for a, e, b in zip(t, d, u, strict=True)) for t in f(w // n) for u in g(w % n)]
        for w in range(f.num_workers * n)
    ]


def test_repeat_is_one_worker_in_row_major_order() -> None:
    assert repeat(2, 3)(0) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert repeat(2, 3, order=(1, 0))(0) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_spatial_is_one_task_per_worker_numbered_row_major() -> None:
    assert lists(spatial(2, 3)) == [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], [(1, 1)], [(1, 2)]]
    assert lists(spatial(2, 3, order=(1, 0))) == [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)], [(0, 2)], [(1, 2)]]


def test_replicate_gives_all_workers_the_same_task() -> None:
    assert lists(replicate(3, rank=2)) == [[(0, 0)]] * 3
    neighbours = spatial(2, 1) * replicate(2, rank=2)
    assert lists(neighbours) == [[(0, 0)], [(0, 0)], [(1, 0)], [(1, 0)]]


@given(st.data(), RANKS)
def test_composition_is_its_definition(data: st.DataObject, rank: int) -> None:
    f, g = data.draw(mappings(rank)), data.draw(mappings(rank, most=1))
    assert lists(f * g) == composed_by_the_definition(f, g)
    assert (f * g).task_shape == tuple(a * b for a, b in zip(f.task_shape, g.task_shape, strict=True))
    assert (f * g).num_workers == f.num_workers * g.num_workers


@given(st.data(), RANKS)
def test_composition_is_associative(data: st.DataObject, rank: int) -> None:
    f, g, h = (data.draw(mappings(rank, most=1)) for _ in range(3))
    assert (f * g) * h == f * (g * h)
    assert composed_by_the_definition(f * g, h) == composed_by_the_definition(f, g * h)


@given(st.data(), RANKS)
def test_repeat_of_ones_is_the_identity(data: st.DataObject, rank: int) -> None:
    f = data.draw(mappings(rank))
    one = repeat(*[1] * rank)
    assert one * f == f == f * one
    assert hash(one * f) == hash(f) == hash(f * one)
    assert lists(one * f) == lists(f) == lists(f * one)


@given(st.data(), RANKS)
def test_repeat_and_spatial_compose_to_partitions_with_equal_work(data: st.DataObject, rank: int) -> None:
    f = data.draw(compositions(rank))
    done = lists(f)
    assert sorted(itertools.chain.from_iterable(done)) == every_task(f)
    assert {len(tasks) for tasks in done} == {f.tasks_per_worker}
    assert f.is_partition
    assert f.is_covering


@given(st.data(), RANKS)
def test_equality_and_hash_are_by_meaning(data: st.DataObject, rank: int) -> None:
    f, g = data.draw(mappings(rank)), data.draw(mappings(rank))
    means_the_same = f.task_shape == g.task_shape and lists(f) == lists(g)
    assert (f == g) == means_the_same
    assert not means_the_same or hash(f) == hash(g)


def test_normal_form_decides_equality() -> None:
    """All compositions of up to three of these factors: equal exactly when their lists are, and many are."""
    factors = [repeat(2, 1), repeat(1, 2), spatial(2, 1), spatial(1, 2), spatial(2, 2), replicate(2, rank=2)]
    products = [
        functools.reduce(operator.mul, chosen) for n in (1, 2, 3) for chosen in itertools.product(factors, repeat=n)
    ]
    meanings = [(f.task_shape, tuple(map(tuple, lists(f)))) for f in products]
    assert len(set(meanings)) < len(products)
    for f, f_means in zip(products, meanings, strict=True):
        for g, g_means in zip(products, meanings, strict=True):
            assert (f == g) == (f_means == g_means)
            assert f != g or hash(f) == hash(g)


@given(st.data(), RANKS)
def test_a_mapping_equals_the_table_of_its_tasks(data: st.DataObject, rank: int) -> None:
    f = data.draw(mappings(rank))
    table = from_function(f, f.task_shape, f.num_workers, name="table")
    assert f == table
    assert table == f
    assert hash(f) == hash(table)


@given(st.data(), RANKS)
def test_partitions_and_covers_are_recognised(data: st.DataObject, rank: int) -> None:
    f = data.draw(mappings(rank))
    done = sorted(itertools.chain.from_iterable(lists(f)))
    assert f.is_partition == (done == every_task(f))
    assert f.is_covering == (set(done) == set(every_task(f)))


@given(st.data(), RANKS)
def test_counts(data: st.DataObject, rank: int) -> None:
    f = data.draw(mappings(rank))
    lengths = {len(tasks) for tasks in lists(f)}
    assert f.num_slots == max(lengths)
    if len(lengths) == 1:
        assert f.tasks_per_worker == f.num_slots
        return
    with pytest.raises(MappingError, match="no single number of tasks per worker"):
        _ = f.tasks_per_worker


def test_the_same_work_written_differently_is_equal() -> None:
    assert spatial(16) == spatial(4) * spatial(4)
    assert repeat(2, 1) * repeat(1, 3) == repeat(2, 3)
    assert repeat(1, 3) * repeat(2, 1) == repeat(2, 3, order=(1, 0))
    assert repeat(4, 1) * spatial(1, 8) == spatial(1, 8) * repeat(4, 1)
    assert repeat(4, 1) * spatial(8, 1) != spatial(8, 1) * repeat(4, 1)
    assert replicate(2, rank=1) * replicate(3, rank=1) == replicate(6, rank=1)
    assert spatial(2, 2) != spatial(4, 1)
    assert spatial(2) != "spatial(2)"


def test_equality_of_huge_mappings_needs_no_enumeration() -> None:
    huge = 1 << 40
    assert repeat(huge, 1) * spatial(1, huge) == spatial(1, huge) * repeat(huge, 1)
    assert repeat(huge, 1) * spatial(huge, 1) != spatial(huge, 1) * repeat(huge, 1)


def test_equality_that_would_take_forever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix, "LARGEST", 1000)

    def swapped(worker: int) -> list[tuple[int]]:
        return [(worker,)]

    huge = spatial(1 << 40) * from_function(swapped, (2,), 2)
    assert huge == spatial(1 << 40) * from_function(swapped, (2,), 2)
    with pytest.raises(MappingError, match="cannot tell whether"):
        _ = huge == spatial(1 << 41)


def test_examples_of_the_design() -> None:
    load = repeat(4, 1) * spatial(16, 8)
    assert repr(load) == "repeat(4, 1) * spatial(16, 8)        64×8 tasks, 128 workers, 4 each"
    assert str(load) == "repeat(4, 1) * spatial(16, 8)"
    assert load(9) == [(1, 1), (17, 1), (33, 1), (49, 1)]
    assert load.inverse()(33, 1) == (9, 2)


def test_repr_counts() -> None:
    uneven = from_function(lambda worker: [(0,)] * worker, (1,), 3, name="uneven")
    assert repr(uneven) == "from_function(uneven, (1,), 3)        1 task, 3 workers, at most 2 each"
    assert repr(repeat()) == "repeat()        1 task, 1 worker, 1 each"
    assert str(repeat(2, 2, order=(1, 0)) * spatial(8, 4)) == "repeat(2, 2, order=(1, 0)) * spatial(8, 4)"
    assert str(replicate(4, rank=2)) == "replicate(4, rank=2)"


@given(st.data(), RANKS)
def test_the_text_of_a_composition_of_atoms_evaluates_to_it(data: st.DataObject, rank: int) -> None:
    f = data.draw(compositions(rank))
    assert eval(str(f), {"repeat": repeat, "spatial": spatial}) == f


@pytest.mark.parametrize("register", range(4))
@pytest.mark.parametrize("lane", range(32))
def test_accumulator_of_m16n8(lane: int, register: int) -> None:
    """PTX ISA, "Matrix fragments for mma.m16n8k16": c0..c3 of each lane."""
    owner = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    row = lane // 4 + (8 if register >= 2 else 0)
    column = lane % 4 * 2 + register % 2
    assert owner(lane)[register] == (row, column)


@pytest.mark.parametrize("lane", range(32))
def test_operands_of_m16n8k16(lane: int) -> None:
    """PTX ISA, the same section: a0..a7 and b0..b3 of each lane, 16-bit elements."""
    owner_a = repeat(2, 2, order=(1, 0)) * spatial(8, 4) * repeat(1, 2)
    owner_b = repeat(2, 1) * spatial(4, 8, order=(1, 0)) * repeat(2, 1)
    group, place = lane // 4, lane % 4
    assert owner_a(lane) == [
        (group + (8 if i in (2, 3, 6, 7) else 0), place * 2 + i % 2 + (8 if i >= 4 else 0)) for i in range(8)
    ]
    assert owner_b(lane) == [(place * 2 + i % 2 + (8 if i >= 2 else 0), group) for i in range(4)]


def test_immutable() -> None:
    with pytest.raises(AttributeError):
        spatial(4).task_shape = (5,)  # type: ignore[misc]


@pytest.mark.parametrize("worker", [-1, 32, 1000])
def test_there_is_no_worker_outside(worker: int) -> None:
    with pytest.raises(IndexOutOfRangeError, match="it has 32 workers"):
        spatial(8, 4)(worker)


@pytest.mark.parametrize("extent", [0, -1, 2.0, "8", True, None])
def test_extents_are_positive_ints(extent: object) -> None:
    for atom in (repeat, spatial):
        with pytest.raises(MappingError, match="cannot have the extent"):
            atom(4, extent)  # type: ignore[arg-type]
    with pytest.raises(MappingError, match="cannot have the extent"):
        replicate(extent, rank=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [(0,), (0, 0), (1, 2), (0, 1, 2)])
def test_an_order_names_each_dimension_once(order: tuple[int, ...]) -> None:
    with pytest.raises(MappingError, match="from slowest to fastest"):
        spatial(2, 3, order=order)


def test_composition_needs_equal_ranks() -> None:
    with pytest.raises(MappingError, match="1 and 2 dimensions"):
        _ = repeat(4) * spatial(2, 2)
    with pytest.raises(TypeError):
        _ = repeat(4) * 3  # type: ignore[operator]


@pytest.mark.parametrize("task", [(4,), (-1,), (0, 0), ("0",), ()])
def test_a_function_gives_tasks_inside_the_shape(task: tuple[object, ...]) -> None:
    with pytest.raises(MappingError, match=r"gives worker 0 the task"):
        from_function(lambda worker: [task], (4,), 2)


def test_a_function_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix, "LARGEST", 1000)
    with pytest.raises(MappingError, match="too large to be given by a function"):
        from_function(lambda worker: [], (1,), 1 << 30)


def test_a_function_is_asked_once() -> None:
    tasks = [(0,)]
    mapping = from_function(lambda worker: tasks, (2,), 1)
    tasks.append((1,))
    assert mapping(0) == [(0,)]


def test_number_of_workers_is_exact_when_huge() -> None:
    assert (spatial(1 << 40) * spatial(1 << 40)).num_workers == 1 << 80 == math.prod([1 << 40, 1 << 40])
