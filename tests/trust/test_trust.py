"""Compilers that generate wrong code get other flags, or refused; the verdict is kept and takes part in keys."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.cpu.compile import partition, stored_kernel
from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.toolchain import Safer, Toolchain, find_toolchain, fingerprint
from taskmap.backend.store.key import KernelKind, KernelSource
from taskmap.cli import env
from taskmap.ir.errors import WrongCompilerError
from taskmap.ir.target import Target, cpu_target
from taskmap.trust import compiler as trusting
from taskmap.trust import corpus, ladder, trial
from taskmap.trust.compiler import trusted_toolchain, verdict_on
from taskmap.trust.ladder import RUNGS, climb
from taskmap.trust.trial import faults
from taskmap.trust.verdict import CompilerVerdict, Fault, UntriedError, find_verdict, keep_verdict, verdict_key
from tests.schedules.running import isas

HONEST = shutil.which("cc") or "cc"
KINDS = {True: ("compared", "truth"), False: ("sums", "mixed")}


def few(target: Target, *, integers: bool) -> Iterator[corpus.Sample]:
    """Some kernels of the corpus that every real compiler compiles correctly, as far as known."""
    programs = corpus._WITH_INTEGERS if integers else corpus._FLOATS_ALONE
    for name, program, dtypes in programs:
        if name in KINDS[integers]:
            task = corpus._task(f"{name}_{dtypes[-1].name}", program(dtypes[-1]))
            yield corpus._sample(task, target, np.random.default_rng(0))


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store without verdicts: those of other tests are of all kernels."""
    monkeypatch.setenv("TASKMAP_CACHE_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machinery is tried with a few kernels."""
    monkeypatch.setattr(ladder, "samples", few)
    monkeypatch.setattr(trusting, "_known", {})


def liar(path: Path, edit: str, unless: str = "-no-such-flag") -> dict[str, str]:
    """An environment with a C compiler that edits its input by `sed`, unless it gets a flag."""
    path.write_text(
        f'#!/bin/sh\ncase " $* " in\n*" {unless} "*) exec {HONEST} "$@";;\n'
        f"*' -x c '*) sed '{edit}' | exec {HONEST} \"$@\";;\n*) exec {HONEST} \"$@\";;\nesac\n"
    )
    path.chmod(0o755)
    return {**os.environ, "TASKMAP_CC": str(path)}


def tried(environ: dict[str, str]) -> Toolchain:
    return find_toolchain(environ=environ, isa="generic")


COMPARISONS = "s/ > / >= /g; s/< 16LL/< 15LL/"
SUMS = "s/< 16LL/< 15LL/"
CRASH = "s/^{$/{ *(volatile int *)8 = 0;/"


def test_a_compiler_that_is_right_gets_no_flags(cache_dir: Path) -> None:
    verdict = verdict_on(find_toolchain(isa="generic"))
    assert verdict is not None
    assert (verdict.safer, verdict.count, verdict.wrong) == (Safer(), 4, ())


@pytest.mark.parametrize("right", [True, False])
def test_a_trial_compiles_few_texts(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspects alone with the usual flags, all other kernels at once: each text costs a prelude and a process."""
    texts: list[tuple[bool, int]] = []

    def counted(samples: list[corpus.Sample], toolchain: Toolchain, *, integers: bool) -> list[Fault]:
        texts.append((integers, len(samples)))
        return [] if right or not samples or toolchain.safer != Safer() else [Fault("compared_u8", "is wrong")]

    assert {name for name, _, _ in corpus._WITH_INTEGERS[:1]} == {"compared"}
    assert len(corpus._WITH_INTEGERS[0][2]) == ladder._SUSPECTS
    monkeypatch.setattr(ladder, "_SUSPECTS", 1)
    monkeypatch.setattr(ladder, "faults", counted)
    climb(find_toolchain(isa="generic"), cpu_target("generic", 2))
    assert [n for integers, n in texts if integers and n] == ([1, 1] if right else [1, 2])
    assert [n for integers, n in texts if not integers and n] == ([2] if right else [2, 2])


@pytest.mark.parametrize("rung", [1, 2])
def test_a_wrong_compiler_gets_the_first_flags_with_which_it_is_right(
    cache_dir: Path, tmp_path: Path, rung: int
) -> None:
    flag = RUNGS["gcc"][rung][-1]
    environ = liar(tmp_path / "cc", COMPARISONS, unless=flag)
    verdict = verdict_on(tried(environ))
    assert verdict is not None
    assert verdict.safer == Safer((flag,), (flag,))
    assert "elements of out0 are wrong" in str(verdict)
    toolchain = trusted_toolchain(isa="generic", environ=environ)
    assert flag in toolchain.compile_command("unit.o", KernelKind(integers=True))
    assert flag in toolchain.compile_command("unit.o")


def test_only_the_kind_of_kernel_that_is_wrong_gets_flags(cache_dir: Path, tmp_path: Path) -> None:
    flag = RUNGS["gcc"][1][0]
    environ = liar(tmp_path / "cc", SUMS, unless=flag)
    toolchain = trusted_toolchain(isa="generic", environ=environ)
    assert toolchain.safer == Safer(integers=(flag,))
    assert flag in toolchain.compile_command("unit.o", KernelKind(integers=True))
    assert flag not in toolchain.compile_command("unit.o")


def test_a_compiler_that_is_wrong_with_all_flags_is_refused(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = liar(tmp_path / "cc", COMPARISONS)
    with pytest.raises(WrongCompilerError, match="wrong code") as error:
        trusted_toolchain(isa="generic", environ=environ)
    assert str(tmp_path / "cc") in str(error.value.where)
    assert "TASKMAP_CC" in str(error.value.hint)
    assert RUNGS["gcc"][-1][0] in str(error.value.why)
    monkeypatch.setenv("TASKMAP_CC", environ["TASKMAP_CC"])
    monkeypatch.setattr(env, "find_toolchain", lambda: tried(environ))
    assert env.main([]) == 1
    assert "wrong, and not used" in capsys.readouterr().out


@pytest.mark.parametrize(("edit", "ending"), [(CRASH, "signal 11"), ("s/^{$/{ for (;;);/", "does not end")])
def test_a_kernel_that_crashes_or_hangs_is_wrong(
    tmp_path: Path, edit: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 2.0)
    toolchain = tried(liar(tmp_path / "cc", edit))
    samples = list(few(cpu_target("generic", 2), integers=True))
    (found,) = faults(samples, toolchain, integers=True)
    assert ending in found.what


def test_a_write_that_goes_astray_is_wrong(tmp_path: Path) -> None:
    toolchain = tried(liar(tmp_path / "cc", r"s/^\( *\)pout0_\([0-9]*\)\[/\1pout0_\2[-1] = 0; &/"))
    samples = list(few(cpu_target("generic", 2), integers=False))
    assert any("outside out0" in found.what for found in faults(samples, toolchain, integers=False))


def test_a_compiler_that_compiles_nothing_is_not_judged(cache_dir: Path, tmp_path: Path) -> None:
    environ = liar(tmp_path / "cc", "s/^/error /")
    toolchain = tried(environ)
    with pytest.raises(UntriedError, match="error"):
        climb(toolchain, cpu_target("generic", 2))
    assert verdict_on(toolchain) is None
    assert trusted_toolchain(isa="generic", environ=environ).safer == Safer()


def test_a_verdict_is_kept_and_read_by_the_next_process(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = tried(liar(tmp_path / "cc", COMPARISONS, unless=RUNGS["gcc"][1][0]))
    first = verdict_on(toolchain)
    monkeypatch.setattr(trusting, "_known", {})
    monkeypatch.setattr(trusting, "_climb", None)
    assert verdict_on(toolchain) == first
    (kept,) = (cache_dir / "compilers").glob(f"{verdict_key(toolchain, fingerprint(toolchain.command[0]))}.json")
    for damage in (b"", b"[]", b"{}", kept.read_bytes().replace(b"-fno", b"-fyes"), b"\xff"):
        kept.write_bytes(damage)
        assert find_verdict(cache_dir, kept.stem) is None
    keep_verdict(
        tmp_path / "cc", kept.stem, toolchain, CompilerVerdict(Safer(), 1)
    )  # a file stands where a folder would be


def test_the_key_of_a_verdict_tells_compilers_and_flags_apart(tmp_path: Path) -> None:
    toolchain = find_toolchain(isa="generic")
    file = fingerprint(toolchain.command[0])
    others = [
        verdict_key(replace(toolchain, identity="gcc version 1"), file),
        verdict_key(replace(toolchain, command=("/other/cc",)), file),
        verdict_key(replace(toolchain, command=(*toolchain.command, "-m64")), file),
        verdict_key(replace(toolchain, fast_math=True), file),
        verdict_key(replace(toolchain, isa="avx2"), file),
        verdict_key(toolchain, (file[0], file[1] + 1, file[2])),
    ]
    assert len({verdict_key(toolchain, file), *others}) == len(others) + 1


def test_chosen_flags_take_part_in_the_keys_of_the_kernels_that_get_them() -> None:
    toolchain = find_toolchain(isa="generic")
    safe = replace(toolchain, safer=Safer(integers=("-O1",)))
    whole = KernelSource("w", "void w(i32 *restrict p) { p[0] = 1; }")
    plain = KernelSource("p", "void p(f32 *restrict p) { for (i64 i = 0; i < tm_min_i64x1(9, 3); i++) p[i] = 1; }")
    assert whole.kind.integers
    assert not plain.kind.integers
    assert stored_kernel(whole, safe).key != stored_kernel(whole, toolchain).key
    assert stored_kernel(plain, safe).key == stored_kernel(plain, toolchain).key
    assert safe.flags != toolchain.flags
    assert [len(unit.kernels) for unit in partition([whole, plain], 1)] == [2]
    assert [len(unit.kernels) for unit in partition([whole, plain], 1, safe.separates)] == [1, 1]
    assert [len(unit.kernels) for unit in partition([whole, plain], 1, toolchain.separates)] == [2]


def test_kernels_that_run_once_share_units_and_cautious_flags() -> None:
    toolchain = find_toolchain(isa="generic")
    whole = KernelSource("w", "void w(i32 *restrict p) { p[0] = 1; }").running_once()
    plain = KernelSource("p", "void p(f32 *restrict p) { p[0] = 1; }").running_once()
    for flags in (Safer(integers=("-O1",)), Safer(floats=("-O1",)), Safer(("-O1",), ("-O1",))):
        safe = replace(toolchain, safer=flags)
        (unit,) = partition([whole, plain], 1, safe.separates)
        assert safe.flags_for(unit.kind) == safe.flags_for(whole.kind) == safe.flags_for(plain.kind)
        assert stored_kernel(plain, safe).key != stored_kernel(plain, toolchain).key
    both = replace(toolchain, safer=Safer(("-O2",), ("-O1",)))
    assert len(partition([whole, plain], 1, both.separates)) == 2
    assert both.flags_for(whole.kind) != both.flags_for(plain.kind)


def test_register_tiles_get_flags_of_their_own_which_the_trial_tries() -> None:
    toolchain = find_toolchain(isa="generic")
    products = "\n".join(f"  a{i} = tm_fma_f32x4(x, y, a{i});" for i in range(8))
    tile = KernelSource("t", f"void t(f32 *restrict p) {{\n{products}\n}}")
    gelu = replace(tile, symbol="g", text=tile.text.replace("}", "  a0 = tm_erf_f32x4(a0);\n}"))
    few = KernelSource("f", "void f(f32 *restrict p) { p[0] = 1; }")
    assert [k.kind.spelled_out for k in (tile, gelu, few)] == [True, False, False]
    usual, own = (toolchain.compile_command("unit.o", KernelKind(spelled_out=s)) for s in (False, True))
    assert (usual != own) is (toolchain.family == "gcc")
    assert (stored_kernel(tile, toolchain).parts["flags"] != stored_kernel(few, toolchain).parts["flags"]) is (
        usual != own
    )
    units = partition([tile, gelu, few], 1)
    assert sorted(len(unit.kernels) for unit in units) == [1, 2]
    assert [unit.kind.spelled_out for unit in units if tile in unit.kernels] == [True]
    for isa in isas():
        tried = corpus.samples(cpu_target(isa, 2), integers=False)
        assert {s.kernel.name for s in tried if s.source.kind.spelled_out} >= {"product_f32", "convolved_f32"}


@pytest.mark.parametrize("isa", isas())
def test_the_corpus_is_sorted_by_kind_and_covers_every_type(isa: str) -> None:
    seen = set()
    for integers in (True, False):
        for sample in corpus.samples(cpu_target(isa, 2), integers=integers):
            assert sample.source.kind.integers == integers, sample.kernel.name
            seen |= {b.dtype for b in sample.kernel.buffers}
    assert seen == set(corpus.EVERY)


def test_the_corpus_has_what_gcc_12_gets_wrong() -> None:
    """The other installed compilers get it right; gcc 12 before 12.4 only with the flag."""
    toolchain = find_toolchain()
    first = [s for s, _ in zip(corpus.samples(cpu_target(toolchain.isa, 2), integers=True), range(3), strict=False)]
    found = faults(first, toolchain, integers=True)
    safe = faults(first, replace(toolchain, safer=Safer(integers=("-fno-tree-slp-vectorize",))), integers=True)
    assert not safe
    if "gcc version 12.2" in toolchain.identity and detect_host().machine == "x86_64":
        assert {fault.kernel for fault in found} == {"compared_u8", "compared_i8", "compared_i16"}
