"""Kernels share one OpenMP runtime with PyTorch, or load the system's if there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskmap.backend.library import ensure_openmp, load_library

CPUS = len(os.sched_getaffinity(0))
ROOT = Path(__file__).parent.parent.parent
KERNEL = """\
import ctypes
import time
from pathlib import Path
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.counters import Counters
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.key import KernelSource
from taskmap.backend.store.objects import KernelStore

source = KernelSource("team", '''
extern int omp_get_max_threads(void) __attribute__((weak));
extern int usleep(unsigned);
static void count(const void *data, i64 first, i64 end) {
  __atomic_fetch_add(*(int *const *)data, 1, 5);
  usleep(10); /* a thread with short work claims several ranges at once */
}
int team(int *ranges) {
  *ranges = 0;
  tm_parallel_1(count, &ranges, 4096);
  return omp_get_max_threads();
}''', "typedef long long i64; extern void tm_parallel_1(void (*)(const void *, i64, i64), const void *, i64);")

def team():
    address = compile_kernels([source], find_toolchain(), KernelStore(), Counters())["team"]
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(address)
    found = []
    for _ in range(20):  # on a busy machine a leader goes on with fewer threads for some milliseconds
        time.sleep(0.02)
        ranges = ctypes.c_int(-1)
        most = function(ctypes.byref(ranges))
        found.append((most, max(1, ranges.value // 8)))  # a thread's part is cut into eight
    return max(found)

def runtimes():
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = {line.split(maxsplit=5)[5] for line in lines if len(line.split()) > 5}
    return sorted(name for name in names if any(part in Path(name).name for part in ("gomp", "libomp", "iomp")))
"""


def run(program: str, **environment: str) -> list[str]:
    """The lines that the program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", KERNEL + program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_with_torch_there_is_one_runtime_and_its_thread_count_is_obeyed() -> None:
    program = """
import torch
torch.randn(300, 300) @ torch.randn(300, 300)
print(len(runtimes()), "torch" in runtimes()[0])
for threads in (1, 2, 3, 1):
    torch.set_num_threads(threads)
    print(*team())
print(len(runtimes()))
"""
    count, *teams, again = run(program)
    assert count == "1 True"
    assert teams == [f"{n} {min(n, CPUS)}" for n in (1, 2, 3, 1)]
    assert again == "1"


def test_torch_imported_after_a_kernel_shares_the_kernels_runtime() -> None:
    program = """
print(*team())
import torch
torch.randn(300, 300) @ torch.randn(300, 300)
torch.set_num_threads(3)
print(*team())
print(len(runtimes()))
"""
    assert run(program, OMP_NUM_THREADS="2") == [f"2 {min(2, CPUS)}", f"3 {min(3, CPUS)}", "1"]


def test_without_torch_the_systems_runtime_is_loaded() -> None:
    program = """
import sys
print(len(runtimes()))
print(*team())
print(len(runtimes()), "torch" in sys.modules)
"""
    assert run(program, OMP_NUM_THREADS="2") == ["0", f"2 {min(2, CPUS)}", "1 False"]


def test_a_runtime_that_only_its_owner_sees_is_shared() -> None:
    """A wheel may load its OpenMP runtime for itself alone; then no second one may be loaded."""
    program = """
private = ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_LOCAL)
private.omp_set_num_threads(3)
print(*team())
print(len(runtimes()))
"""
    assert run(program) == [f"3 {min(3, CPUS)}", "1"]


def test_the_runtime_is_found_here() -> None:
    assert ensure_openmp()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    path.write_text("no library")
    with pytest.raises(OSError, match=r"no\.so"):
        load_library(path)
