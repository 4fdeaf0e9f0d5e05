"""Inverses, holders, and symbolic lowering."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.ir.algebra.inverse import flaw
from taskmap.ir.algebra.loops import Lowered
from taskmap.ir.algebra.mapping import TaskMapping, from_function, repeat, replicate, spatial
from taskmap.ir.algebra.register_tile import RegisterTile
from taskmap.ir.errors import IndexOutOfRangeError, MappingError
from taskmap.ir.nodes import Binary, Const, Expr, Var
from tests.ir.algebra.mapping_strategies import Symbol, compositions, mappings, value_of

RANKS = st.integers(0, 3)


def run(lowered: Lowered, names: list[str], worker: int) -> Iterator[tuple[int, ...]]:
    """Execute the loop nest."""
    for values in itertools.product(*(range(extent) for _, extent in lowered.loops)):
        named = {"worker": worker, **dict(zip(names, values, strict=True))}
        yield tuple(value_of(index, named) for index in lowered.indices)


def lower(mapping: TaskMapping) -> tuple[Lowered, list[str]]:
    names: list[str] = []

    def fresh_var(extent: int) -> Symbol:
        assert extent > 1, "a loop that runs once is no loop"
        names.append(f"i{len(names)}")
        return Symbol.named(names[-1])

    worker = Symbol.named("worker")
    return mapping.on(worker).lower(worker, fresh_var), names


@given(st.data(), RANKS)
def test_lowering_to_loops_gives_the_same_tasks_in_the_same_order(data: st.DataObject, rank: int) -> None:
    mapping = data.draw(compositions(rank)) * replicate(data.draw(st.integers(1, 3)), rank=rank)
    lowered, names = lower(mapping)
    for worker in range(mapping.num_workers):
        assert list(run(lowered, names, worker)) == mapping(worker)


def test_lowering_to_ir_nodes() -> None:
    def evaluate(expr: object, values: dict[Var, int]) -> int:
        match expr:
            case int():
                return expr
            case Const():
                return int(expr.value)
            case Var():
                return values[expr]
            case Binary(op, a, b):
                x, y = evaluate(a, values), evaluate(b, values)
                return {"add": x + y, "mul": x * y, "floordiv": x // max(y, 1), "mod": x % max(y, 1)}[op]
        raise AssertionError(expr)

    load = repeat(4, 1) * spatial(16, 8)
    thread = Var("thread")
    lowered = load.on(thread).lower(thread, lambda extent: Var("i"))
    ((var, extent),) = lowered.loops
    assert extent == 4
    assert all(isinstance(index, Expr) for index in lowered.indices)
    for worker in range(128):
        tasks = [
            tuple(evaluate(index, {thread: worker, var: value}) for index in lowered.indices) for value in range(extent)
        ]
        assert tasks == load(worker)


def test_a_function_of_one_task_lowers_to_its_own_expression() -> None:
    skewed = from_function(lambda worker: [(worker % 4, worker // 4 * 3 % 4)], (4, 4), 16, name="skewed")
    mapping = repeat(2, 1) * skewed * spatial(1, 2)
    lowered, names = lower(mapping)
    for worker in range(mapping.num_workers):
        assert list(run(lowered, names, worker)) == mapping(worker)


def test_a_function_of_several_tasks_does_not_lower() -> None:
    pair = from_function(lambda worker: [(worker,), (1 - worker,)], (2,), 2, name="pair")
    with pytest.raises(MappingError, match="do not do exactly one task each"):
        lower(pair)


def test_on_a_concrete_worker_iterates() -> None:
    load = repeat(4, 1) * spatial(16, 8)
    assert list(load.on(9)) == load(9)
    with pytest.raises(MappingError, match="cannot iterate over the tasks of the symbolic worker"):
        list(load.on(Var("thread")))


@given(st.data(), RANKS)
def test_inverse_round_trip(data: st.DataObject, rank: int) -> None:
    mapping = data.draw(mappings(rank))
    if not mapping.is_partition:
        with pytest.raises(MappingError, match="has no inverse"):
            mapping.inverse()
        return
    inverse = mapping.inverse()
    for worker in range(mapping.num_workers):
        for slot, task in enumerate(mapping(worker)):
            assert inverse(*task) == (worker, slot)
            assert inverse.all(*task) == [(worker, slot)]


@given(st.data(), RANKS)
def test_inverse_of_a_symbolic_task(data: st.DataObject, rank: int) -> None:
    mapping = data.draw(compositions(rank))
    names = [f"t{dim}" for dim in range(rank)]
    inverse = mapping.inverse()
    worker, slot = inverse(*map(Symbol.named, names))
    for task in itertools.product(*map(range, mapping.task_shape)):
        values = dict(zip(names, task, strict=True))
        assert (value_of(worker, values), value_of(slot, values)) == inverse(*task)


@given(st.data(), RANKS)
def test_holders_are_all_pairs(data: st.DataObject, rank: int) -> None:
    mapping = data.draw(mappings(rank))
    holders = mapping.holders()
    pairs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for worker in range(mapping.num_workers):
        for slot, task in enumerate(mapping(worker)):
            pairs.setdefault(task, []).append((worker, slot))
    for task in itertools.product(*map(range, mapping.task_shape)):
        assert holders.all(*task) == pairs.get(task, [])
        if task in pairs:
            assert holders(*task)[0] == pairs[task][0][0]


@given(st.data(), RANKS)
def test_a_flaw_names_a_task_that_is_not_done_once(data: st.DataObject, rank: int) -> None:
    mapping = data.draw(mappings(rank))
    assert bool(flaw(mapping)) == (not mapping.is_partition)


def test_why_there_is_no_inverse() -> None:
    with pytest.raises(MappingError, match=r"task \(0, 0\) is done by workers 0, 32, 64 and 96"):
        (replicate(4, rank=2) * spatial(8, 4)).inverse()
    with pytest.raises(MappingError, match=r"task \(1,\) is done by no worker"):
        (from_function(lambda worker: [(0,)], (2,), 1)).inverse()
    with pytest.raises(MappingError, match=r"task \(0,\) is done by worker 0 2 times"):
        (from_function(lambda worker: [(0,), (0,)], (1,), 1)).inverse()


def test_there_is_no_task_outside() -> None:
    inverse = spatial(8, 4).inverse()
    for task in [(8, 0), (0, -1), (0,), (0, 0, 0)]:
        with pytest.raises(IndexOutOfRangeError, match="its tasks lie inside 8×4"):
            inverse(*task)


def test_the_inverse_of_a_function_is_a_table() -> None:
    inverse = from_function(lambda worker: [(3 - worker,)], (4,), 4).inverse()
    assert inverse(0) == (3, 0)
    with pytest.raises(MappingError, match="symbolic task"):
        inverse(Symbol.named("t"))


@given(st.data(), RANKS)
def test_register_tiles_locate_their_elements(data: st.DataObject, rank: int) -> None:
    owner = data.draw(mappings(rank))
    if not owner.is_covering:
        with pytest.raises(MappingError, match="is done by no worker: that element would have no register"):
            RegisterTile(owner.task_shape, owner)
        return
    tile = RegisterTile(owner.task_shape, owner)
    assert (tile.num_workers, tile.num_slots) == (owner.num_workers, owner.num_slots)
    for coords in itertools.product(*map(range, tile.shape)):
        worker, slot = tile.locate(*coords)
        assert tile.tile(worker)[slot] == coords
        assert (worker, slot) == min(tile.holders(*coords))


def test_register_tiles_are_equal_by_meaning() -> None:
    rows, columns = spatial(8, 1), spatial(1, 8)
    assert RegisterTile((8, 8), rows * columns) == RegisterTile((8, 8), spatial(8, 8))
    assert hash(RegisterTile((4,), spatial(4))) == hash(RegisterTile((4,), spatial(2) * spatial(2)))


def test_a_register_tile_has_the_shape_of_its_owner() -> None:
    with pytest.raises(MappingError, match="it distributes 16×8 elements"):
        RegisterTile((16, 16), repeat(2, 1) * spatial(8, 8))


def test_slot_of_a_register_tile_at_symbolic_coordinates() -> None:
    tile = RegisterTile((16, 8), repeat(2, 1) * spatial(8, 4) * repeat(1, 2))
    worker, slot = tile.locate(Symbol.named("i"), Symbol.named("j"))
    for i, j in itertools.product(range(16), range(8)):
        assert (value_of(worker, {"i": i, "j": j}), value_of(slot, {"i": i, "j": j})) == tile.locate(i, j)
