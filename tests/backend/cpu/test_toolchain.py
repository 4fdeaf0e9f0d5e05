"""The compiler's discovery and identity, and the effects of its flags on the process that loads its output."""

import ctypes
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.host import ISAS, HostInfo, Isa, detect_host
from taskmap.backend.cpu.toolchain import Toolchain, find_toolchain
from taskmap.backend.store.key import KernelKind, KernelSource
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError, InvalidOptionError, UnsupportedError
from tests.backend.c_kernels import check_scales, scale_kernel

CLANG = shutil.which("clang") or shutil.which("clang-14")


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def compiler(path: Path, version: str) -> Path:
    """A program that answers -v as a gcc of this version would."""
    return script(path, f"echo 'Target: x86_64-linux-gnu' >&2; echo 'gcc version {version} (Test)' >&2")


def test_order_of_discovery(tmp_path: Path) -> None:
    for number, name in enumerate(("mine", "theirs", "cc", "gcc", "clang")):
        compiler(tmp_path / name, f"1.{number}")
    environ = {"PATH": str(tmp_path), "TASKMAP_CC": "mine", "CC": "theirs"}
    for name, missing in (("mine", "TASKMAP_CC"), ("theirs", "CC"), ("cc", ""), ("gcc", ""), ("clang", "")):
        assert find_toolchain(environ=environ).command == (str(tmp_path / name),)
        environ.pop(missing, None)
        (tmp_path / name).unlink()
    with pytest.raises(CompilerNotFoundError, match="no C compiler found") as error:
        find_toolchain(environ=environ)
    assert "apt install gcc" in str(error.value)


@pytest.mark.parametrize("name", ["no-such-cc", "/no/such/cc", "{0}/text"])
def test_a_chosen_compiler_that_is_missing_is_an_error(tmp_path: Path, name: str) -> None:
    """The hint names the mistake and the compiler that is installed; it does not suggest to install one."""
    compiler(tmp_path / "cc", "1.0")
    (tmp_path / "text").write_text("no program")
    name = name.format(tmp_path)
    with pytest.raises(CompilerNotFoundError, match=f"'{name}'") as error:
        find_toolchain(environ={"PATH": str(tmp_path), "TASKMAP_CC": name})
    assert "TASKMAP_CC" in str(error.value.where)
    assert {"no": "PATH", "/n": "no such file", "/t": "may run"}[name[:2]] in str(error.value.why)
    assert f"unset it: {tmp_path}/cc is here" in str(error.value.hint)
    assert "nstall" not in str(error.value)


def test_without_any_compiler_a_wrong_choice_is_told_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(CompilerNotFoundError, match=r"Correct TASKMAP_CC\. Install a C compiler"):
        find_toolchain(environ={"PATH": str(tmp_path), "TASKMAP_CC": "nope"})


def test_a_missing_cc_is_passed_over_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiler(tmp_path / "cc", "1.0")
    for _ in range(2):
        found = find_toolchain(environ={"PATH": str(tmp_path), "CC": "no-such-cc -m64"})
        assert found.command == (str(tmp_path / "cc"),)
    (said,) = caplog.messages
    assert "CC names (no-such-cc -m64)" in said
    assert str(tmp_path / "cc") in said
    caplog.clear()
    find_toolchain(environ={"PATH": str(tmp_path), "CC": "cc -m64"})
    assert not caplog.messages


def test_arguments_of_the_command_count_as_flags(tmp_path: Path) -> None:
    compiler(tmp_path / "cc", "1.0")
    plain = find_toolchain(environ={"PATH": str(tmp_path)})
    with_argument = find_toolchain(environ={"PATH": str(tmp_path), "TASKMAP_CC": "cc '-DA=b c'"})
    assert with_argument.command == (str(tmp_path / "cc"), "-DA=b c")
    assert with_argument.flags != plain.flags
    assert "-DA=b c" in with_argument.compile_command("unit.o")


def test_identity_is_version_and_target_not_path(tmp_path: Path) -> None:
    one, same, other = (compiler(tmp_path / name, v) for name, v in (("a", "12.1"), ("b", "12.1"), ("c", "12.2")))
    found = [find_toolchain(environ={"TASKMAP_CC": str(path)}) for path in (one, same, other)]
    assert found[0].identity == found[1].identity != found[2].identity
    assert found[0].flags == found[1].flags
    assert "x86_64-linux-gnu" in found[0].identity


def test_a_compiler_replaced_under_its_name_is_noticed(tmp_path: Path) -> None:
    path = compiler(tmp_path / "cc", "12.1")
    before = find_toolchain(environ={"TASKMAP_CC": str(path)}).identity
    compiler(path, "13.10")
    assert find_toolchain(environ={"TASKMAP_CC": str(path)}).identity != before


def test_the_version_is_asked_once(tmp_path: Path) -> None:
    path = script(tmp_path / "cc", f"echo x >> {tmp_path}/calls; echo 'Target: t' >&2; echo 'gcc version 1.0' >&2")
    for _ in range(3):
        find_toolchain(environ={"TASKMAP_CC": str(path)})
    assert (tmp_path / "calls").read_text() == "x\n"


@pytest.mark.parametrize("body", ["exit 1", "echo hello", "echo 'gcc version 1.0'; echo 'Target: t'; exit 3"])
def test_a_compiler_that_does_not_say_what_it_is(tmp_path: Path, body: str) -> None:
    path = script(tmp_path / "cc", body)
    with pytest.raises(CompilerFailedError, match="does not report its version"):
        find_toolchain(environ={"TASKMAP_CC": str(path)})


def test_a_file_that_cannot_be_executed(tmp_path: Path) -> None:
    path = tmp_path / "cc"
    path.write_bytes(b"\x7fELF no program")
    path.chmod(0o755)
    with pytest.raises(CompilerFailedError, match="does not report its version"):
        find_toolchain(environ={"TASKMAP_CC": str(path)})


def test_isa_chooses_flags_and_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {isa: find_toolchain(isa=isa).flags for isa in ISAS if detect_host().supports(isa)}
    assert len(set(flags.values())) == len(flags)
    assert not any(flag.startswith(("-mavx", "-march", "-mtune")) for flag in flags["generic"])
    with pytest.raises(InvalidOptionError):
        find_toolchain(isa="avx9")

    old = HostInfo("x86_64", "Old CPU", "generic", 1, 1, 1, 1, 0)
    monkeypatch.setattr("taskmap.backend.cpu.toolchain.detect_host", lambda: old)
    with pytest.raises(UnsupportedError, match="cannot compile for avx2") as error:
        find_toolchain(isa="avx2")
    assert "Old CPU" in str(error.value)


@pytest.mark.parametrize("isa", ISAS)
def test_every_isa_compiles_and_runs(isa: Isa) -> None:
    if not detect_host().supports(isa):
        pytest.skip(f"this CPU has no {isa}")
    loaded = compile_kernels([scale_kernel(3)], find_toolchain(isa=isa), KernelStore(), Counters())
    check_scales(loaded, 3)


def test_headers_and_libraries_named_in_the_environment_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    environment = find_toolchain().environment("/scratch")
    assert "CPATH" not in environment
    assert (environment["LC_ALL"], environment["TMPDIR"]) == ("C", "/scratch")
    assert environment["PATH"] == os.environ["PATH"]


def kernel(name: str, text: str, toolchain: Toolchain) -> int:
    return compile_kernels([KernelSource(name, text)], toolchain, KernelStore(), Counters())[name]


@pytest.mark.parametrize("fast_math", [False, True])
def test_kernels_reach_the_functions_that_compilers_call(fast_math: bool) -> None:
    """Of libm (pow, of several versions), of libgcc (division of 128 bits), and copies of memory."""
    toolchain = find_toolchain(fast_math=fast_math)
    text = """
    struct block { double all[4096]; };
    double used(double x, double y, struct block *to, const struct block *from)
    {
      *to = *from;
      const unsigned __int128 wide = (unsigned __int128)(x * 1e18) * 1000000007u;
      return __builtin_pow(x, y) + (double)(wide / (unsigned __int128)(y * 1e18));
    }"""
    double = ctypes.c_double
    function = ctypes.CFUNCTYPE(double, double, double, ctypes.c_void_p, ctypes.c_void_p)
    source, target = np.random.default_rng().standard_normal(4096), np.zeros(4096)
    got = function(kernel("used", text, toolchain))(8.0, 3.0, target.ctypes.data, source.ctypes.data)
    assert got == 512.0 + 8 * 1000000007 // 3
    np.testing.assert_array_equal(target, source)


def test_kernels_are_linked_without_the_c_library_and_the_team_with_it() -> None:
    toolchain = find_toolchain()
    bare = ("-nostdlib" in toolchain.link_flags, "-nostdlib" in toolchain.build_commands("k.so", KernelKind())[-1])
    assert bare == ((True, True) if toolchain.family == "gcc" else (False, False))
    assert "-nostdlib" not in replace(toolchain, hosted=True).link_flags


def test_fast_math_does_not_flush_denormals_in_the_process() -> None:
    """gcc links start-up code that flushes them when it links with -ffast-math."""
    toolchain = find_toolchain(fast_math=True)
    assert "-ffast-math" in toolchain.flags
    kernel("half", "float half(float x) { return x * 0.5f; }", toolchain)
    tiny = np.array([1e-40], dtype=np.float32)
    assert (tiny * np.float32(0.5))[0] > 0


def test_ieee_arithmetic_by_default_and_fast_math_on_request() -> None:
    text = "int is_nan(float x) { return x != x; }"
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_float)
    assert function(kernel("is_nan", text, find_toolchain()))(float("nan")) == 1
    assert function(kernel("is_nan", text, find_toolchain(fast_math=True)))(float("nan")) == 0


def test_contraction_happens_on_request_alone() -> None:
    """a * a - b is exactly zero if the product is rounded first, else it is the product's rounding error."""
    if detect_host().isa == "generic":
        pytest.skip("no fused multiply-add on this CPU")
    text = "float residue(float a, float b) { return a * a - b; }"
    function = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_float)
    a = np.float32(1 + 2**-12)
    b = float(a * a)
    assert function(kernel("residue", text, find_toolchain()))(float(a), b) == 0.0
    assert function(kernel("residue", text, find_toolchain(contract=True)))(float(a), b) == 2.0**-24


@pytest.mark.skipif(CLANG is None, reason="no clang here")
def test_clang_compiles_the_same_kernels() -> None:
    toolchain = find_toolchain(environ={"TASKMAP_CC": str(CLANG), "PATH": os.environ["PATH"]})
    assert toolchain.family == "clang"
    check_scales(compile_kernels([scale_kernel(2), scale_kernel(7)], toolchain, KernelStore(), Counters()), 2, 7)
