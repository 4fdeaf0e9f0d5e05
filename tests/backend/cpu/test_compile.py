"""From sources to addresses: correct results, nothing compiled twice, and every failure of a compiler."""

import ctypes
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import KernelCompiler, LoadedKernels, compile_kernels, partition, stored_kernel
from taskmap.backend.cpu.toolchain import Toolchain, find_toolchain
from taskmap.backend.library import Library, load_library
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore, StoredKernel
from taskmap.ir.errors import CompilerFailedError
from tests.backend.c_kernels import PRELUDE, check_scales, scale_kernel

pytestmark = pytest.mark.usefixtures("cache_dir")


def build(*factors: int, counters: Counters | None = None, toolchain: Toolchain | None = None) -> LoadedKernels:
    """The scale kernels for these factors, as a new process with the same store would get them."""
    sources = [scale_kernel(factor) for factor in factors]
    return compile_kernels(sources, toolchain or find_toolchain(), KernelStore(), counters or Counters())


def wrapped(folder: Path, before: str) -> Toolchain:
    """The real compiler, behind a script that does something first."""
    real = find_toolchain()
    path = folder / "slow-cc"
    path.write_text(f'#!/bin/sh\n{before}\nexec {real.command[0]} "$@"\n')
    path.chmod(0o755)
    return replace(real, command=(str(path),))


def test_kernels_are_right_and_are_compiled_once() -> None:
    counters = Counters()
    check_scales(build(2, 3, 5, counters=counters), 2, 3, 5)
    counts = counters.snapshot()
    assert (counts.kernels_compiled, counts.kernels_found) == (3, 0)
    assert 1 <= counts.units_compiled <= 3
    assert counts.compile_seconds > 0

    counters = Counters()
    check_scales(build(5, 2, 3, counters=counters), 2, 3, 5)
    counts = counters.snapshot()
    assert (counts.kernels_compiled, counts.kernels_found, counts.units_compiled) == (0, 3, 0)
    assert counts.compile_seconds == 0


def test_only_what_is_missing_is_compiled() -> None:
    counters = Counters()
    build(2, 3)
    check_scales(build(2, 3, 4, counters=counters), 2, 3, 4)
    assert (counters.snapshot().kernels_compiled, counters.snapshot().kernels_found) == (1, 2)


def test_a_warm_start_runs_no_compiler(tmp_path: Path) -> None:
    build(2, 3)
    broken = replace(find_toolchain(), command=("/no/such/compiler",))
    check_scales(build(2, 3, toolchain=broken), 2, 3)


def test_result_is_a_mapping_in_the_order_asked_for() -> None:
    loaded = build(7, 2, 5)
    assert list(loaded) == ["scale_7", "scale_2", "scale_5"]
    assert len(loaded) == 3
    assert all(address > 0 for address in loaded.values())
    assert all(isinstance(library, Library) for library in loaded.libraries)


def test_nothing_wanted_and_the_same_wanted_twice() -> None:
    counters = Counters()
    assert dict(build(counters=counters)) == {}
    check_scales(build(2, 2, counters=counters), 2)
    assert counters.snapshot().kernels_compiled == 1


def test_one_symbol_for_two_sources_is_refused() -> None:
    other = replace(scale_kernel(2), text=scale_kernel(2).text + " ")
    with pytest.raises(ValueError, match="two different kernels are called scale_2"):
        compile_kernels([scale_kernel(2), other], find_toolchain(), KernelStore(), Counters())


def test_progress_counts_up_to_all_in_the_calling_thread() -> None:
    calls: list[tuple[int, int]] = []
    threads = set()

    def progress(ready: int, wanted: int) -> None:
        calls.append((ready, wanted))
        threads.add(threading.get_ident())

    build(1)
    sources = [scale_kernel(factor) for factor in range(1, 7)]
    compile_kernels(sources, find_toolchain(), KernelStore(), Counters(), progress, jobs=2)
    assert calls == sorted(calls)
    assert calls[0][0] > 1  # the kernel that was found is counted as ready
    assert calls[-1] == (6, 6)
    assert threads == {threading.get_ident()}


def test_partition_balances_and_keeps_preludes_apart() -> None:
    kernels = [KernelSource(f"k{number}", "x" * (number * 10), prelude="ab"[number % 2]) for number in range(1, 41)]
    units = partition(kernels, 4)
    assert sorted(kernel.symbol for unit in units for kernel in unit.kernels) == sorted(k.symbol for k in kernels)
    assert all(len({kernel.prelude for kernel in unit.kernels}) == 1 for unit in units)
    lengths = [sum(len(kernel.text) for kernel in unit.kernels) for unit in units]
    assert len(units) == 4
    assert max(lengths) < 1.1 * min(lengths)
    assert lengths == sorted(lengths, reverse=True)


def test_partition_of_few_kernels_and_of_many_preludes() -> None:
    assert [len(unit.kernels) for unit in partition([KernelSource("f", "x"), KernelSource("g", "x")], 8)] == [1, 1]
    many = [KernelSource(f"k{number}", "x", prelude=str(number)) for number in range(10)]
    assert len(partition(many, 2)) == 10


def test_kernels_that_run_once_have_units_and_flags_of_their_own() -> None:
    usual, once, toolchain = scale_kernel(3), scale_kernel(2).running_once(), find_toolchain()
    assert (usual.kind.once, once.kind.once) == (False, True)
    assert sorted(unit.kind.once for unit in partition([usual, once], 1)) == [False, True]
    flags = [stored_kernel(source, toolchain).parts["flags"] for source in (usual, once, scale_kernel(2))]
    assert flags[0] == flags[2] != flags[1]
    loaded = compile_kernels([usual, once, scale_kernel(2)], toolchain, KernelStore(), Counters())
    check_scales(loaded, 2, 3)
    check_scales({"scale_2": loaded[once.symbol]}, 2)


def test_kernels_of_different_preludes_and_equal_statics() -> None:
    other = PRELUDE.replace("return x * by;", "return by * x;")
    assert other != PRELUDE
    sources = [scale_kernel(2), scale_kernel(3, other), scale_kernel(4)]
    check_scales(compile_kernels(sources, find_toolchain(), KernelStore(), Counters(), jobs=1), 2, 3, 4)


def test_a_whole_object_that_does_not_load_is_compiled_again(cache_dir: Path) -> None:
    """An example is an object that was built on a machine with another C library."""
    store = KernelStore()
    loaded = build(2)
    (key,) = [path.stem for path in (cache_dir / "index").rglob("*.json")]
    kernels = [StoredKernel(key, "scale_2", {})]
    store.add_kernels(kernels, store.add_object(b"\x7fELF and then nothing"))
    counters = Counters()
    check_scales(build(2, counters=counters), 2)
    assert counters.snapshot().kernels_compiled == 1
    check_scales(loaded, 2)


def test_a_store_removed_while_in_use(cache_dir: Path) -> None:
    store = KernelStore()
    sources = [scale_kernel(2)]
    first = compile_kernels(sources, find_toolchain(), store, Counters())
    shutil.rmtree(cache_dir)
    check_scales(first, 2)
    check_scales(compile_kernels(sources, find_toolchain(), store, Counters()), 2)
    assert cache_dir.exists()


def test_an_unwritable_store_still_gives_kernels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    store = KernelStore(tmp_path / "file" / "store")
    counters = Counters()
    for _ in range(2):
        check_scales(compile_kernels([scale_kernel(2)], find_toolchain(), store, counters), 2)
    assert (counters.snapshot().kernels_compiled, counters.snapshot().kernels_found) == (1, 1)
    assert len(caplog.records) == 1


def test_a_store_where_nothing_may_be_executed(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> Library:
        if path.is_relative_to(cache_dir):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load_library(path)

    monkeypatch.setattr("taskmap.backend.cpu.compile.load_library", refuse)
    check_scales(build(2, 3), 2, 3)
    assert "failed to map segment" in caplog.text


def test_a_source_that_is_wrong(cache_dir: Path) -> None:
    bad = KernelSource("bad", "void bad(void) {\n  int x = undeclared;\n}")
    with pytest.raises(CompilerFailedError, match="the C compiler failed") as error:
        compile_kernels([scale_kernel(2), bad], find_toolchain(), KernelStore(), Counters())
    message = str(error.value)
    assert "bad:2:" in message  # the kernel and its line
    assert "undeclared" in message
    assert find_toolchain().command[0] in message
    (kept,) = (cache_dir / "failed").iterdir()
    assert str(kept) in message
    assert bad.text in kept.read_text()


def test_a_source_that_cannot_be_linked_to_the_process(cache_dir: Path) -> None:
    lost = KernelSource("lost", "void nowhere_to_be_found(void);\nvoid lost(void) { nowhere_to_be_found(); }")
    with pytest.raises(CompilerFailedError, match="cannot be loaded") as error:
        compile_kernels([lost], find_toolchain(), KernelStore(), Counters())
    assert "nowhere_to_be_found" in str(error.value)
    stored = [json.loads(path.read_text())["symbol"] for path in (cache_dir / "index").rglob("*.json")]
    assert "lost" not in stored


def test_a_kernel_that_does_not_define_its_symbol() -> None:
    with pytest.raises(CompilerFailedError, match="cannot be loaded") as error:
        compile_kernels([KernelSource("f", "static int g;")], find_toolchain(), KernelStore(), Counters())
    assert "f" in str(error.value.why)


def test_a_long_complaint_is_cut_and_starts_at_the_error() -> None:
    text = "void f(void) {\n" + "\n".join(f"  undeclared_{number}();;" for number in range(50))
    bad = KernelSource("f", text)
    with pytest.raises(CompilerFailedError) as error:
        compile_kernels([bad], find_toolchain(), KernelStore(), Counters())
    assert "more lines)" in str(error.value) or len(str(error.value).splitlines()) < 20
    assert "error:" in str(error.value.why).splitlines()[1]


def test_preludes_in_parts_share_a_unit() -> None:
    word, half, double = (
        "typedef int word;",
        "static word half(word x) { return x / 2; }",
        "#define DOUBLE(x) (2 * (x))",
    )
    kernels = [
        KernelSource("f", "int f(int x) { return half(x); }", (word, half)),
        KernelSource("g", "int g(int x) { return DOUBLE(x) + half(x); }", (double, word, half)),
        KernelSource("h", "int h(int x) { return x; }", ()),
    ]
    (unit,) = partition(kernels, 1)
    assert [unit.text.count(part) for part in (word, half, double)] == [1, 1, 1]
    assert sorted(len(unit.kernels) for unit in partition([*kernels, scale_kernel(2)], 2)) == [1, 3]
    counters = Counters()
    loaded = compile_kernels(kernels, find_toolchain(), KernelStore(), counters, jobs=1)
    g = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(loaded["g"])
    assert g(9) == 22
    assert counters.snapshot().units_compiled == 1


@pytest.mark.parametrize(("ending", "said"), [("exit 3", "exit status 3"), ("kill -9 $$", "signal 9")])
def test_a_compiler_that_crashes(tmp_path: Path, ending: str, said: str) -> None:
    with pytest.raises(CompilerFailedError) as error:
        build(2, toolchain=wrapped(tmp_path, ending))
    assert said in str(error.value)


def test_a_compiler_that_cannot_be_run() -> None:
    with pytest.raises(CompilerFailedError, match="the C compiler failed") as error:
        build(2, toolchain=replace(find_toolchain(), command=("/no/such/compiler",)))
    assert "could not be run" in str(error.value)


def test_a_compiler_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    toolchain = wrapped(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    started = time.perf_counter()
    with pytest.raises(CompilerFailedError) as error:
        build(2, toolchain=replace(toolchain, timeout=0.3))
    assert time.perf_counter() - started < 20
    assert "did not end within 0.3 s" in str(error.value)
    assert is_gone(int((tmp_path / "child").read_text()))


def test_one_failure_ends_the_other_compilers(tmp_path: Path) -> None:
    toolchain = wrapped(tmp_path, f"if mkdir {tmp_path}/first 2>/dev/null; then exit 1; fi; sleep 60")
    started = time.perf_counter()
    with pytest.raises(CompilerFailedError):
        build(2, 3, 4, 5, toolchain=toolchain)
    assert time.perf_counter() - started < 20


def long_kernel(factor: int) -> KernelSource:
    """A scale kernel long enough for a compiler of its own."""
    kernel = scale_kernel(factor)
    return replace(kernel, text=f"{kernel.text}\n/* {'x' * 30_000} */")


def test_compilers_start_while_kernels_are_still_being_made(tmp_path: Path) -> None:
    toolchain = wrapped(tmp_path, f"touch {tmp_path}/started")
    counters = Counters()
    with closing(KernelCompiler(toolchain, KernelStore(), counters)) as compiler:
        compiler.add(scale_kernel(2))
        compiler.add(scale_kernel(2))
        assert len(compiler) == 1
        time.sleep(0.1)
        assert not (tmp_path / "started").exists()  # too little for a compiler
        compiler.add(long_kernel(3))
        deadline = time.monotonic() + 10
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        loaded = compiler.finish([long_kernel(4), scale_kernel(5)])
    check_scales(loaded, 2, 3, 4, 5)
    assert counters.snapshot().kernels_compiled == 4
    assert counters.snapshot().units_compiled >= 2


def test_closing_ends_the_compilers(tmp_path: Path) -> None:
    toolchain = wrapped(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 60")
    started = time.perf_counter()
    with closing(KernelCompiler(toolchain, KernelStore(), Counters())) as compiler:
        compiler.add(long_kernel(2))
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
            time.sleep(0.01)
    assert time.perf_counter() - started < 20
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_many_threads_compile_the_same_kernels() -> None:
    store, toolchain = KernelStore(), find_toolchain()
    sources = [scale_kernel(factor) for factor in (2, 3)]
    with ThreadPoolExecutor(4) as executor:
        results = [executor.submit(compile_kernels, sources, toolchain, store, Counters()) for _ in range(4)]
        for result in results:
            check_scales(result.result(), 2, 3)


def test_counters_add_up_over_threads() -> None:
    counters = Counters()
    with ThreadPoolExecutor(4) as executor:
        for _ in range(400):
            executor.submit(counters.add, kernels_compiled=1, kernels_found=2, compile_seconds=0.5)
    counts = counters.snapshot()
    assert (counts.kernels_compiled, counts.kernels_found, counts.compile_seconds) == (400, 800, 200.0)


def is_gone(pid: int) -> bool:
    """True if a process ends within a moment; an unreaped zombie has ended."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    os.kill(pid, 9)
    return False
