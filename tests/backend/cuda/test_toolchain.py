"""CUDA C++ to machine code, on a machine that needs no GPU: compilation, reports, storage and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cuda import nvrtc
from taskmap.backend.cuda.compile import SUFFIX, CudaCompiler, compile_cuda, whole_text
from taskmap.backend.cuda.driver import OLDEST_DRIVER
from taskmap.backend.cuda.resources import Resources, read_resources
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.toolchain import CudaToolchain, find_cuda_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.errors import (
    CompilerFailedError,
    CompilerNotFoundError,
    KernelResourceError,
    UnsupportedError,
)


def cuda(symbol: str, text: str) -> CudaSource:
    return CudaSource(symbol, text, ("base", "portable"), False, (1,), 256, 0, ())


SCALE = cuda(
    "scale",
    """extern "C" __global__ void __launch_bounds__(256) scale(tm_global<const float> p0, tm_global<float> p1)
{
  const int v0 = blockIdx.x * 256 + threadIdx.x;
  p1[v0] = 2.0f * p0[v0];
}
""",
)
SPILLS = cuda(
    "spills",
    """extern "C" __global__ void __launch_bounds__(1024) spills(tm_global<float> p0, int n)
{
  float r[160];
#pragma unroll
  for (int i = 0; i < 160; i++) r[i] = p0[i * n];
#pragma unroll
  for (int i = 0; i < 160; i++) p0[i + n] = r[i] * r[159 - i];
}
""",
)
SERIALIZED = cuda(
    "serialized",
    """extern "C" __global__ void serialized(float *o, unsigned long long a, unsigned long long b)
{
  float d[4] = {0, 0, 0, 0};
  for (int k = 0; k < 4; k++) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a + k), "l"(b));
    d[0] += 1;
  }
  for (int i = 0; i < 4; i++) o[threadIdx.x * 4 + i] = d[i];
}
""",
)


@pytest.fixture
def store(tmp_path: Path) -> KernelStore:
    return KernelStore(tmp_path / "store", suffix=SUFFIX)


def test_what_is_installed_makes_what_the_oldest_driver_loads() -> None:
    """A driver loads the output of a compiler of its own version or of an older one."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    major, minor = nvrtc.nvrtc_version()
    assert 1000 * major + 10 * minor <= OLDEST_DRIVER
    assert f'"nvidia-cuda-nvrtc=={OLDEST_DRIVER // 1000}.{OLDEST_DRIVER % 1000 // 10}.*' in text


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a", "sm_100a"])
def test_a_kernel_compiles_and_says_what_it_takes(store: KernelStore, architecture: str) -> None:
    binary = compile_cuda([SCALE], find_cuda_toolchain(architecture), store, Counters())["scale"]
    assert binary.image.startswith(b"\x7fELF")
    assert 4 <= binary.resources.registers <= 32
    assert binary.resources.spills == 0
    assert binary.resources.warnings == ()


def test_the_second_time_it_is_found_with_its_resources(store: KernelStore) -> None:
    toolchain, counters = find_cuda_toolchain("sm_80"), Counters()
    first = compile_cuda([SCALE], toolchain, store, counters)
    again = compile_cuda([SCALE], toolchain, KernelStore(store.path, suffix=SUFFIX), counters)
    assert again == first
    assert (counters.snapshot().kernels_compiled, counters.snapshot().kernels_found) == (1, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"architecture": "sm_86"},
        {"fast_math": True},
        {"contract": False},
        {"identity": "NVRTC 12.9"},
    ],
)
def test_everything_that_changes_a_binary_changes_its_key(store: KernelStore, other: dict[str, object]) -> None:
    toolchain, counters = find_cuda_toolchain("sm_80"), Counters()
    compile_cuda([SCALE], toolchain, store, counters)
    compile_cuda([SCALE], replace(toolchain, **other), store, counters)  # type: ignore[arg-type]
    compile_cuda([replace(SCALE, text=SCALE.text + "\n__device__ int another;\n")], toolchain, store, counters)
    assert counters.snapshot().kernels_compiled == 3


def test_a_store_without_the_resources_compiles_again(store: KernelStore) -> None:
    toolchain, counters = find_cuda_toolchain("sm_80"), Counters()
    compile_cuda([SCALE], toolchain, store, counters)
    for entry in (store.path / "index").rglob("*.json"):
        entry.write_text(entry.read_text().replace("registers", "rgisters"))
    compile_cuda([SCALE], toolchain, KernelStore(store.path, suffix=SUFFIX), counters)
    assert counters.snapshot().kernels_compiled == 2


def test_spilled_registers_are_an_error_unless_allowed(store: KernelStore) -> None:
    toolchain = find_cuda_toolchain("sm_80")
    with pytest.raises(KernelResourceError, match=r"spills, for sm_80\n  \d+ bytes are stored to memory"):
        compile_cuda([SPILLS], toolchain, store, Counters())
    allowed = compile_cuda([replace(SPILLS, allow=("spills",))], toolchain, store, Counters())["spills"]
    assert allowed.resources.spill_loads > 0
    assert allowed.resources.spills == allowed.resources.spill_loads + allowed.resources.spill_stores


def test_what_was_stored_by_one_that_is_allowed_is_refused_to_others(store: KernelStore) -> None:
    toolchain, counters = find_cuda_toolchain("sm_80"), Counters()
    allowed = replace(SPILLS, allow=("spills",))
    made = compile_cuda([allowed], toolchain, store, counters)
    with pytest.raises(KernelResourceError, match="bytes are stored to memory"):
        compile_cuda([SPILLS], toolchain, store, counters)
    with closing(CudaCompiler(toolchain, store, counters)) as compiler:
        compiler.add(SPILLS)
        assert list(compiler.refused()) == ["spills"]
        compiler.add(allowed)
        assert compiler.finish() == made
    assert counters.snapshot().kernels_compiled == 1


def test_what_spills_is_given_up_and_others_take_its_place(store: KernelStore) -> None:
    seen: list[tuple[int, int]] = []
    compiler = CudaCompiler(find_cuda_toolchain("sm_80"), store, Counters())
    with closing(compiler):
        compiler.add(SCALE)
        compiler.add(SPILLS)
        refused = compiler.refused(lambda done, wanted: seen.append((done, wanted)))
        assert list(refused) == ["spills"]
        assert "bytes are stored to memory" in str(refused["spills"].why)
        assert seen[-1] == (1, 1)
        compiler.add(replace(SPILLS, allow=("spills",)))
        assert compiler.refused() == {}
        made = compiler.finish()
    assert set(made) == {"scale", "spills"}
    assert made["spills"].source.allow == ("spills",)


def test_serialised_tensor_instructions_are_an_error_unless_allowed(store: KernelStore) -> None:
    toolchain = find_cuda_toolchain("sm_90a")
    with pytest.raises(KernelResourceError, match=r"wgmma\.mma_async instructions are serialized"):
        compile_cuda([SERIALIZED], toolchain, store, Counters())
    allowed = compile_cuda([replace(SERIALIZED, allow=("serialized",))], toolchain, store, Counters())["serialized"]
    assert allowed.resources.serialized
    assert "serialised wgmma" in str(allowed.resources)


def test_what_only_hopper_has_is_refused_elsewhere(store: KernelStore) -> None:
    with pytest.raises(CompilerFailedError, match=r"not supported on \.target 'sm_90'"):
        compile_cuda([SERIALIZED], find_cuda_toolchain("sm_90"), store, Counters())


def test_a_refused_source_is_kept_and_the_message_counts_lines_in_the_kernel(store: KernelStore) -> None:
    wrong = replace(SCALE, text=SCALE.text.replace("2.0f", "two"))
    with pytest.raises(CompilerFailedError, match=r'scale\(4\): error: identifier "two" is undefined') as caught:
        compile_cuda([wrong], find_cuda_toolchain("sm_80"), store, Counters())
    (kept,) = (store.path / "failed").iterdir()
    assert str(kept) in str(caught.value)
    assert kept.read_text() == whole_text(wrong)


def test_kernels_compile_side_by_side(store: KernelStore) -> None:
    seen: list[tuple[int, int]] = []
    sources = [replace(SCALE, symbol=f"k{i}", text=SCALE.text.replace("scale", f"k{i}")) for i in range(5)]
    made = compile_cuda(sources, find_cuda_toolchain("sm_80"), store, Counters(), lambda a, b: seen.append((a, b)))
    assert list(made) == [f"k{i}" for i in range(5)]
    assert seen == [(i, 5) for i in range(1, 6)]
    assert not [t for t in threading.enumerate() if t.name.startswith("taskmap-nvrtc")]


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("sm_70", "before compute capability 7.5"),
        ("sm_77", "NVRTC 13.0 compiles for sm_75, sm_80"),
        ("compute_80", "is written sm_80, sm_90a"),
    ],
)
def test_architectures_that_cannot_be_compiled_for(architecture: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        find_cuda_toolchain(architecture)


def test_nvcc_makes_the_same_kernel(store: KernelStore) -> None:
    try:
        toolchain = find_cuda_toolchain("sm_90a", compiler="nvcc")
    except CompilerNotFoundError:
        pytest.skip("nvcc is not installed")
    made = compile_cuda([SCALE], toolchain, store, Counters())
    assert made["scale"].image.startswith(b"\x7fELF")
    assert made["scale"].resources.registers > 0
    with pytest.raises(CompilerFailedError, match="two"):
        compile_cuda([replace(SCALE, text=SCALE.text.replace("2.0f", "two"))], toolchain, store, Counters())


NVCC = """\
#!{python}
import sys
from pathlib import Path

from taskmap.backend.cuda.nvrtc import RefusedSourceError, assemble

arguments = sys.argv[1:]
if arguments == ["--version"]:
    sys.exit(print("Cuda compilation tools, release 13.0, V13.0.88"))
kind, *flags, x, cu, dash, o, image = arguments
assert kind in ("--cubin", "--ptx") and [x, cu, dash, o] == ["-x", "cu", "-", "-o"], arguments
flags = [f.replace("--generate-code=arch=compute_90a,code=sm_90a", "--gpu-architecture=sm_90a") for f in flags]
if kind == "--ptx":
    flags = [f.replace("sm_90a", "compute_90a") for f in flags]
try:
    made = assemble(sys.stdin.read(), "stdin", flags, ptx=kind == "--ptx")
except RefusedSourceError as error:
    sys.exit(str(error))
Path(image).write_bytes(made.image)
print(made.log, file=sys.stderr)
"""


def test_nvcc_is_called_as_it_takes_it(store: KernelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in its place takes the arguments of nvcc 13.0 and passes them to NVRTC."""
    program = tmp_path / "nvcc"
    program.write_text(NVCC.replace("{python}", sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("TASKMAP_CUDA_COMPILER", "nvcc")
    toolchain = find_cuda_toolchain("sm_90a")
    assert (toolchain.identity, toolchain.command) == ("nvcc release 13.0, V13.0.88", str(program))
    made = compile_cuda([SCALE], toolchain, store, Counters())["scale"]
    assert made.image.startswith(b"\x7fELF")
    assert made.resources.registers > 0
    assert ".target sm_90a" in toolchain.ptx(whole_text(SCALE), "scale")
    with pytest.raises(KernelResourceError, match="bytes are stored to memory"):
        compile_cuda([SPILLS], toolchain, store, Counters())
    with pytest.raises(CompilerFailedError, match=r'scale\(4\): error: identifier "two"'):
        compile_cuda([replace(SCALE, text=SCALE.text.replace("2.0f", "two"))], toolchain, store, Counters())


def test_the_choice_of_a_compiler_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMAP_CUDA_COMPILER", "clang")
    with pytest.raises(CompilerNotFoundError, match="TASKMAP_CUDA_COMPILER"):
        find_cuda_toolchain("sm_80")
    monkeypatch.setenv("TASKMAP_CUDA_COMPILER", "nvcc")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(CompilerNotFoundError, match="nvcc was not found"):
        find_cuda_toolchain("sm_80")


def test_ptx_names_the_virtual_architecture() -> None:
    toolchain = find_cuda_toolchain("sm_90a")
    text = toolchain.ptx(whole_text(SCALE), "scale")
    assert ".target sm_90a" in text
    assert ".entry scale" in text


@pytest.mark.parametrize("how", ["no bindings", "no library"])
def test_without_nvrtc_the_message_says_how_to_install_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.nvrtc_module.cache_clear()
    if how == "no bindings":
        monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    else:
        bindings = pytest.importorskip("cuda.bindings.nvrtc")

        def missing() -> None:
            raise RuntimeError("Failure finding libnvrtc.so")

        monkeypatch.setattr(bindings, "nvrtcVersion", missing)
    try:
        with pytest.raises(CompilerNotFoundError, match=r"pip install 'cuda-bindings==13\.0\.\*'"):
            find_cuda_toolchain("sm_80")
    finally:
        monkeypatch.undo()
        nvrtc.nvrtc_module.cache_clear()


def test_an_error_of_nvrtc_itself() -> None:
    bad = CudaToolchain("nvrtc", "NVRTC", "sm_12345")
    with pytest.raises(CompilerFailedError, match=r"NVRTC_ERROR_INVALID_OPTION\n.*invalid value"):
        bad.assemble("", "empty")


REPORT = """\
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x in 'w'
k(3): warning #550-D: variable "a" was set but never used
ptxas info    : Compiling entry function 'w' for 'sm_90a'
ptxas info    : Function properties for w
ptxas         .     648 bytes stack frame, 1028 bytes spill stores, 1032 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 648 bytes cumulative stack size, 4096 bytes smem, 364 bytes cmem[0]
"""


def test_reading_a_report() -> None:
    read = read_resources(REPORT)
    assert (read.registers, read.stack, read.spill_stores, read.spill_loads) == (32, 648, 1028, 1032)
    assert (read.barriers, read.shared, read.constant, read.serialized) == (2, 4096, 364, True)
    assert [w[:7] for w in read.warnings] == ["(C7511)", "k(3): w"]
    assert Resources.from_json(read.to_json()) == read
    assert str(read) == (
        "32 registers, 2060 bytes spilled, 648 bytes of stack, 4096 bytes of static shared memory, serialised wgmma"
    )


def test_cuda_is_not_imported_with_the_package() -> None:
    code = "import taskmap, sys; import taskmap.backend.cuda.compile; sys.exit('cuda.bindings' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
