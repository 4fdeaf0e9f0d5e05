"""Division of task mappings undoes composition, and returns None for mappings that are not compositions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.algebra.mapping import TaskMapping, from_function, repeat, replicate, spatial
from taskmap.ir.algebra.quotient import along, quotient

extents = st.tuples(st.integers(1, 4), st.integers(1, 4))
atoms = st.builds(lambda atom, e, turned: atom(*e, order=(1, 0) if turned else None),
                  st.sampled_from((repeat, spatial)), extents, st.booleans())  # fmt: skip


def product(parts: list[TaskMapping]) -> TaskMapping:
    total = parts[0]
    for part in parts[1:]:
        total = total * part
    return total


mappings = st.lists(atoms, min_size=1, max_size=3).map(product)


@settings(max_examples=200)
@given(mappings, mappings)
def test_a_composition_divided_by_its_inner_mapping_gives_the_outer_one(outer: TaskMapping, inner: TaskMapping) -> None:
    found = quotient(outer * inner, inner)
    assert found is not None
    assert found * inner == outer * inner


@settings(max_examples=200)
@given(mappings, mappings)
def test_a_quotient_times_its_divisor_is_the_mapping(whole: TaskMapping, inner: TaskMapping) -> None:
    found = quotient(whole, inner)
    assert found is None or found * inner == whole


def test_mappings_that_are_not_compositions_have_no_quotient() -> None:
    assert quotient(spatial(4, 4), repeat(2, 2)) is None
    assert quotient(spatial(4, 4), spatial(3, 1)) is None
    assert quotient(repeat(4, 4), repeat(2, 2)) is None  # in row-major order a row is not two halves of tiles
    assert quotient(from_function(lambda w: [(w,)], (4,), 4), spatial(2)) is None


def test_fragments_of_a_warp_tile() -> None:
    fragment = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)
    assert quotient(spatial(2, 2) * repeat(2, 4) * fragment, fragment) == spatial(2, 2) * repeat(2, 4)


@settings(max_examples=100)
@given(mappings)
def test_along_keeps_one_coordinate_of_every_task(mapping: TaskMapping) -> None:
    for dim in (0, 1):
        part = along(mapping, dim)
        assert part is not None
        assert part.num_workers == mapping.num_workers
        for worker in range(mapping.num_workers):
            expected = list(dict.fromkeys(task[dim] for task in mapping(worker)))
            assert sorted(task[dim] for task in part(worker)) == sorted(expected)
            assert all(task[1 - dim] == 0 for task in part(worker))


def test_along_of_a_function_is_unknown() -> None:
    assert along(from_function(lambda w: [(w, 0)], (4, 1), 4), 0) is None
    assert along(replicate(3, rank=2) * spatial(2, 1), 0) is not None


def test_equal_mappings_that_are_written_differently_give_quotients_with_text_of_their_own() -> None:
    """A cache by meaning would give the text of whoever asked first, and generated source would show it."""
    written, short = repeat(2) * repeat(4), repeat(8)
    assert written == short
    texts = [str(quotient(m, repeat(4))) for m in (written, short)]
    assert texts == ["(repeat(2) * repeat(4)) / (repeat(4))", "(repeat(8)) / (repeat(4))"]
