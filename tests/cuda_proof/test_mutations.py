"""Mutants of every GPU template: the simulator notices each one that changes the kernel's behaviour; a rule names the
others. A sample of them: python -m benchmarks.cuda_mutations runs all."""

from __future__ import annotations

import pytest

from taskmap.backend.cuda.source import CudaSource
from tests.cuda_proof.broken import BREAKABLE, CLEARED, LAST_STEP
from tests.cuda_proof.mutants import Mutant, mutants
from tests.cuda_proof.mutations import Mutation, hunt, mutations
from tests.schedules.cuda_running import cuda, source_of

EACH = 1
"""Mutants of one kind in the sample of one kernel."""


def sample(every: list[Mutation]) -> list[Mutation]:
    """Evenly spaced ones of each kind."""
    kinds: dict[str, list[Mutation]] = {}
    for m in every:
        kinds.setdefault(m.kind, []).append(m)
    return [found[n * len(found) // EACH] for found in kinds.values() for n in range(min(EACH, len(found)))]


@pytest.mark.parametrize("name", BREAKABLE)
def test_mutants_are_caught(name: str) -> None:
    broken = BREAKABLE[name]
    task = broken.make()
    kernel = broken.plan(task, cuda(broken.isa))
    assert kernel is not None
    source = source_of(kernel, broken.isa)
    cases = broken.cases(task)
    right = hunt(cases, kernel, [Mutation("none", 1, source)])
    assert right.survived, "the kernel itself is not right"
    found = hunt(cases, kernel, sample(list(mutations(source))), broken.rules)
    assert not found.survived, "\n".join(map(str, found.survived))
    assert found.caught


TEXT = """\
void k(tm_global<float> p)
{
  tm_mbarrier_init(full + 1, 4);
  tm_mbarrier_wait(empty + step % 3, step / 3 % 2);
  tm_mbarrier_arrive_expect_tx(full, 4096);
  tm_cp_async_wait<2>();
  tm_barrier();
  tm_ldmatrix_x4_trans(a, left + f(lane, 3));
  if (row < 5 && k < 7) {
  p[0] = a < 3 && b < 4 ? 1 : 0;
  tm_tma_load_2d(left, map_left, full, 0, row);
}
"""


def test_every_kind_of_mistake_in_the_protocols() -> None:
    found = {
        (m.kind, m.line, m.source.text.splitlines()[m.line - 1].strip())
        for m in mutations(CudaSource("k", TEXT, (), False, (1,), 32, 0, ()))
    }
    assert found >= {
        ("count", 3, "tm_mbarrier_init(full + 1, 5);"),
        ("count", 3, "tm_mbarrier_init(full + 1, 3);"),
        ("parity", 4, "tm_mbarrier_wait(empty + step % 3, 1 - (step / 3 % 2));"),
        ("bytes", 5, "tm_mbarrier_arrive_expect_tx(full, 4080);"),
        ("wait gone", 6, ""),
        ("wait", 6, "tm_cp_async_wait<3>();"),
        ("order", 6, "tm_barrier();"),
        ("transposition", 8, "tm_ldmatrix_x4(a, left + f(lane, 3));"),
        ("condition", 9, "if (row < 5) {"),
        ("condition", 9, "if (k < 7) {"),
        ("condition", 10, "p[0] = b < 4 ? 1 : 0;"),
        ("copy", 11, ""),
    }


def test_a_rule_covers_its_own_mutants_only() -> None:
    source = CudaSource("k", TEXT, (), False, (1,), 32, 0, ())
    assert LAST_STEP.covers(Mutation("predicate", 9, source, "    if (step + 1 < 5) {"))
    assert not LAST_STEP.covers(Mutation("predicate", 9, source, "    if (row < 5) {"))
    assert not LAST_STEP.covers(Mutation("barrier", 9, source, "    if (step + 1 < 5) {"))
    cleared = CudaSource(
        "k", TEXT.replace("tm_barrier();", "tm_atomic_exch_i32(counters + n, 0);"), (), False, (1,), 32, 0, ()
    )
    alone = "  if (thread < 1) {"
    assert CLEARED.covers(Mutation("predicate", 6, cleared, alone, "thread < 1"))
    assert not CLEARED.covers(Mutation("predicate", 6, source, alone, "thread < 1"))
    assert not CLEARED.covers(Mutation("predicate", 5, cleared, alone, "thread < 1"))
    rows, parts = BREAKABLE["product, tensor cores"].own_rules
    assert rows.covers(Mutation("predicate", 9, source, "", "chunk * 8 < 40"))
    assert rows.covers(Mutation("predicate", 9, source, "", "row < 35 && chunk * 8 < 40"))
    assert not rows.covers(Mutation("predicate", 9, source, "", "row < 35 && chunk * 8 < 200"))
    assert not rows.covers(Mutation("predicate", 9, source, "", "chunk * 8 < 200"))
    assert parts.covers(Mutation("condition", 9, source, "row < 35 && chunk * 8 < 200", "row < 35"))
    assert not parts.covers(Mutation("condition", 9, source, "row < 35 && chunk * 8 < 200", "chunk * 8 < 200"))


def test_what_a_condition_was() -> None:
    found = {(m.kind, m.line, m.part) for m in mutations(CudaSource("k", TEXT, (), False, (1,), 32, 0, ())) if m.part}
    assert found == {
        ("predicate", 9, "row < 5 && k < 7"), ("condition", 9, "row < 5"), ("condition", 9, "k < 7"),
        ("predicate", 10, "a < 3 && b < 4"), ("condition", 10, "a < 3"), ("condition", 10, "b < 4"),
    }  # fmt: skip


def test_every_kind_of_mutant() -> None:
    """The mutants of a text."""
    text = """\
void k(tm_global<float> p)
{
  tm_shared<float> s = tm_shared_at<float>(0);
  s[v ^ 3] = a < 3 ? p[v] : 0.0f;
  tm_cp_async_commit();
  tm_cp_async_wait<1>();
  tm_fence_proxy_async();
  tm_mbarrier_arrive(full + i % 3);
  tm_barrier();
  if (v < n) p[v] = s[(i + 1) % 2 * 8 + v];
  p[tm_min<int>(v + 1, 34)] = tm_shuffle_xor<32>(v, 16);
  tm_atomic_add_i32_shared(s + v, n);
}
"""
    found = {(m.kind, m.line, m.text.splitlines()[m.line - 1].strip()) for m in mutants(text)}
    assert found >= {
        ("index", 4, "s[v ^ 3] = a < 3 ? p[1 + v] : 0.0f;"),
        ("index", 4, "s[1 + v ^ 3] = a < 3 ? p[v] : 0.0f;"),
        ("swizzle", 4, "s[v + 0 * 3] = a < 3 ? p[v] : 0.0f;"),
        ("predicate", 4, "s[v ^ 3] = a < 3 || true ? p[v] : 0.0f;"),
        ("commit", 5, ""),
        ("wait", 6, "tm_cp_async_wait<2>();"),
        ("fence", 7, ""),
        ("arrival", 8, ""),
        ("barrier", 9, ""),
        ("predicate", 10, "if (true || v < n) p[v] = s[(i + 1) % 2 * 8 + v];"),
        ("stage", 10, "if (v < n) p[v] = s[(i + 1) % 1 * 8 + v];"),
        ("index", 10, "if (v < n) p[1 + v] = s[(i + 1) % 2 * 8 + v];"),
        ("index", 10, "if (v < n) p[v] = s[1 + (i + 1) % 2 * 8 + v];"),
        ("limit", 11, "p[(v + 1)] = tm_shuffle_xor<32>(v, 16);"),
        ("lane", 11, "p[tm_min<int>(v + 1, 34)] = tm_shuffle_xor<32>(v, 8);"),
        ("atomic", 12, "0;"),
        ("atomic", 12, "s[v] = s[v] + n;"),
    }
    assert str(Mutant("commit", 1, "\n")) == "commit in line 1: (nothing)"
