"""Certificates: their proofs and their counterexamples."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.ir.algebra import radix
from taskmap.ir.algebra.layout import column_major, padded, row_major, strided
from taskmap.ir.algebra.mapping import from_function, repeat, replicate, spatial
from taskmap.ir.errors import MappingError
from tests.ir.algebra.mapping_strategies import mappings

LOAD = repeat(4, 1) * spatial(16, 8)


def test_example_of_the_design() -> None:
    certificate = LOAD.certify(layout=row_major(64, 8), scope="shared", target="cuda:sm_80", bytes=4)
    assert str(certificate) == "every task once · in bounds · 32 banks, 1-way · 16 warp accesses"
    assert certificate.holds
    assert certificate.conflict_degree == 1
    assert certificate.explain().count("✓") == 3


def test_a_bank_conflict_is_shown_and_padding_or_a_swizzle_removes_it() -> None:
    column = spatial(1, 32) * repeat(32, 1)
    assert column.certify(layout=row_major(32, 32), scope="shared").conflict_degree == 1
    row = spatial(32, 1) * repeat(1, 32)
    conflicted = row.certify(layout=row_major(32, 32), scope="shared")
    assert conflicted.conflict_degree == 32
    assert not conflicted.holds
    assert (
        "32 banks, 32-way (in warp 0 at slot 0, bank 0 serves a different word to workers 0, 1, 2, 3 and 28 more)"
        in str(conflicted)
    )
    assert row.certify(layout=padded(32, 32, pad=1), scope="shared").conflict_degree == 1
    assert row.certify(layout=row_major(32, 32).swizzled(5, 0, 5), scope="shared").conflict_degree == 1


def test_lanes_that_want_the_same_word_do_not_conflict() -> None:
    shared = replicate(32, rank=1)
    certificate = shared.certify(layout=row_major(1), scope="shared")
    assert certificate.conflict_degree == 1
    halves = spatial(64).certify(layout=row_major(64), scope="shared", bytes=2)
    assert halves.conflict_degree == 1


@pytest.mark.parametrize(("bytes", "degree"), [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1)])
def test_consecutive_elements_of_any_size_do_not_conflict(bytes: int, degree: int) -> None:
    assert spatial(64).certify(layout=row_major(64), scope="shared", bytes=bytes).conflict_degree == degree


def test_wide_accesses_are_served_in_phases() -> None:
    """Rows of 128 bytes read 16 bytes a lane, 8 lanes at a time: the pattern of ldmatrix."""
    column = spatial(32, 1)
    chunks = strided((32, 8), (8, 1))  # an element is a chunk of 16 bytes
    assert column.certify(layout=chunks, scope="shared", bytes=16).conflict_degree == 8
    swizzled = row_major(32, 8).swizzled(3, 0, 3)
    assert column.certify(layout=swizzled, scope="shared", bytes=16).conflict_degree == 1


def test_coalescing() -> None:
    good = LOAD.certify(layout=row_major(64, 8))
    assert str(good) == "every task once · in bounds · coalesced, 64 sectors of 32 bytes · 16 warp accesses"
    assert (good.sectors, good.fewest_sectors) == (64, 64)
    bad = LOAD.certify(layout=column_major(64, 8))
    assert not bad.holds
    assert (bad.sectors, bad.fewest_sectors) == (128, 64)
    assert "uncoalesced, 128 sectors for 64 (warp 0 at slot 0 moves 8 sectors for the data of 4)" in str(bad)


def test_out_of_bounds_is_shown() -> None:
    certificate = LOAD.certify(layout=row_major(63, 8))
    assert not certificate.holds
    assert "out of bounds (task (63, 0) of 64×8 lies outside row_major(63, 8))" in str(certificate)
    assert "the layout 1" in str(LOAD.certify(layout=row_major(512)))


def test_double_work_and_missing_work_are_shown() -> None:
    double = (replicate(2, rank=2) * LOAD).certify(layout=row_major(64, 8))
    assert "not every task once (task (0, 0) is done by workers 0 and 128)" in str(double)
    missing = from_function(lambda worker: [(0,)], (2,), 1).certify()
    assert str(missing) == "not every task once (task (1,) is done by no worker)"
    assert missing.explain() == "✗ not every task once: task (1,) is done by no worker"
    table = from_function(lambda worker: [(1 - worker,)], (2,), 2).certify()
    assert "lists every task once" in table.explain()


def test_uneven_lists_are_followed_to_their_ends() -> None:
    uneven = from_function(lambda worker: [(worker,)] if worker else [(0,), (2,)], (3,), 2, name="uneven")
    assert uneven.certify(layout=row_major(3)).accesses == 2
    assert str(uneven.certify(layout=row_major(3))).endswith("2 warp accesses")


def test_registers_and_other_targets_have_no_banks() -> None:
    for certificate in (
        LOAD.certify(layout=row_major(64, 8), scope="register"),
        LOAD.certify(layout=row_major(64, 8), scope="shared", target="cpu"),
    ):
        assert str(certificate) == "every task once · in bounds"
        assert certificate.conflict_degree is certificate.sectors is None


@given(st.data(), st.integers(1, 3))
def test_coverage_and_bounds_agree_with_listing(data: st.DataObject, rank: int) -> None:
    mapping = data.draw(mappings(rank))
    shape = tuple(data.draw(st.integers(1, 6)) for _ in range(rank))
    certificate = mapping.certify(layout=row_major(*shape), scope="register")
    done = [task for worker in range(mapping.num_workers) for task in mapping(worker)]
    coverage, bounds = certificate.claims
    assert coverage.holds == (sorted(done) == list(itertools.product(*map(range, mapping.task_shape))))
    assert bounds.holds == all(index < extent for task in done for index, extent in zip(task, shape, strict=True))


@given(st.lists(st.integers(0, 300), min_size=1, max_size=32), st.sampled_from([1, 2, 4, 8, 16]))
def test_banks_and_sectors_by_brute_force(chosen: list[int], bytes: int) -> None:
    mapping = from_function(lambda worker: [(chosen[worker],)], (301,), len(chosen), name="chosen")
    lanes = 128 // max(bytes, 4)
    worst = 0
    for first in range(0, len(chosen), lanes):
        words = {b // 4 for at in chosen[first : first + lanes] for b in range(at * bytes, (at + 1) * bytes)}
        worst = max(worst, *(sum(word % 32 == bank for word in words) for bank in range(32)))
    assert mapping.certify(layout=row_major(301), scope="shared", bytes=bytes).conflict_degree == worst
    sectors = {b // 32 for at in chosen for b in range(at * bytes, (at + 1) * bytes)}
    assert mapping.certify(layout=row_major(301), bytes=bytes).sectors == len(sectors)


def test_certificates_are_values() -> None:
    certificate = LOAD.certify(layout=row_major(64, 8))
    assert certificate == LOAD.certify(layout=row_major(64, 8))
    with pytest.raises(AttributeError):
        certificate.sectors = 0  # type: ignore[misc]


def test_accesses_that_cannot_be_certified_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MappingError, match="one of global, shared, register"):
        LOAD.certify(scope="constant")
    with pytest.raises(MappingError, match="1, 2, 4, 8 or 16 bytes"):
        LOAD.certify(bytes=3)
    monkeypatch.setattr(radix, "LARGEST", 100)
    with pytest.raises(MappingError, match="too large to certify"):
        LOAD.certify(layout=row_major(64, 8))
