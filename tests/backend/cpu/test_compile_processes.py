"""Several processes on one store, and processes that are interrupted or killed while they compile."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore
from tests.backend.c_kernels import check_scales, scale_kernel

pytestmark = pytest.mark.usefixtures("cache_dir")

ROOT = Path(__file__).parents[3]
FACTORS = (2, 3, 5, 7)
# The signal reaches a thread that sleeps, and the main thread, which waits for a compiler, is not woken by it.
ELSEWHERE = """\
import threading, time
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""
# A shell's background job ignores interrupts, and so would its children.
PROGRAM = f"""\
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.backend.c_kernels import check_scales, scale_kernel
from taskmap.backend.cpu.compile import compile_kernels
from taskmap.backend.counters import Counters
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.backend.store.objects import KernelStore

counters = Counters()
print("started", flush=True)
sources = [scale_kernel(factor) for factor in {FACTORS}]
check_scales(compile_kernels(sources, find_toolchain(), KernelStore(), counters, jobs=2), *{FACTORS})
print(counters.snapshot().kernels_compiled)
"""


def start(temporary: Path, compiler: Path | None = None, *, first: str = "") -> "subprocess.Popen[str]":
    """A process that compiles, loads and checks the kernels in the store of this test; `first`: code before."""
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    if compiler is not None:
        environment["TASKMAP_CC"] = str(compiler)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("counters =", f"{first}counters =", 1)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def slow_compiler(folder: Path, seconds: float, log: Path) -> Path:
    """The real compiler, which first writes its process number to `log` and waits; `-v` is answered at once."""
    path = folder / "slow-cc"
    real = find_toolchain().command[0]
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -v ] && exec {real} -v\necho $$ >> {log}\nsleep {seconds}\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return path


def finish(process: "subprocess.Popen[str]", complaint: str = "") -> int:
    """The number of kernels that the process compiled; checks that it succeeded with no other output than the
    complaint."""
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert complaint in errors if complaint else not errors
    return int(out.splitlines()[-1])


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.005)


def test_two_processes_at_once(tmp_path: Path) -> None:
    both = [start(tmp_path / "tmp") for _ in range(2)]
    assert sum(finish(process) for process in both) >= len(FACTORS)
    assert finish(start(tmp_path / "tmp")) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("what", "damage"), [("objects", "flip"), ("objects", "cut"), ("index", "cut")])
def test_damage_is_noticed_and_repaired(tmp_path: Path, cache_dir: Path, what: str, damage: str) -> None:
    finish(start(tmp_path / "tmp"))
    for path in [path for path in (cache_dir / what).rglob("*") if path.is_file()]:
        data = path.read_bytes()
        path.write_bytes(data[:-9] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    assert finish(start(tmp_path / "tmp"), complaint="taskmap removed a") == len(FACTORS)
    assert finish(start(tmp_path / "tmp")) == 0


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.25, 0.4])
def test_killed_at_any_moment(tmp_path: Path, delay: float, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    process = start(tmp_path / "tmp", slow_compiler(tmp_path, 0.05, log))
    wait_for(log)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    counters = Counters()
    sources = [scale_kernel(factor) for factor in FACTORS]
    check_scales(compile_kernels(sources, find_toolchain(), KernelStore(), counters), *FACTORS)
    counts = counters.snapshot()
    assert counts.kernels_compiled + counts.kernels_found == len(FACTORS)
    assert not caplog.records  # nothing that was half-written could be found


@pytest.mark.parametrize("first", ["", ELSEWHERE], ids=["here", "elsewhere"])
def test_an_interrupt_ends_the_compilers_and_leaves_nothing(tmp_path: Path, cache_dir: Path, first: str) -> None:
    before = {path for path in cache_dir.rglob("*") if path.is_file()}
    log = tmp_path / "log"
    process = start(tmp_path / "tmp", slow_compiler(tmp_path, 60, log), first=first)
    wait_for(log)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=40)
    finally:
        process.kill()  # a test that fails leaves no process to the next ones
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0
    for line in log.read_text().split():
        assert not Path(f"/proc/{line}").exists()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert {path for path in cache_dir.rglob("*") if path.is_file()} == before
