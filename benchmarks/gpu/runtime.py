"""The runtime around the kernels, on a GPU: streams, CUDA graphs, several devices, memory, and errors.

python -m benchmarks.gpu.runtime [--seconds 30] [--out FOLDER]
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.gpu import hardware
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import ROOT, GpuConditions
from benchmarks.gpu.hardware import is_lost
from benchmarks.gpu.record import LOST, measure_each
from benchmarks.gpu.timing import Deadline
from taskmap.backend.cuda.source import CudaSource
from taskmap.ir.errors import DeviceError, DeviceMemoryError, IndexOutOfRangeError, NoDeviceError, UnsupportedError
from taskmap.torch_backend import compile_fx

Function = Callable[..., Any]

# These carry no types.
_new_stream: Callable[[torch.device], Any] = torch.cuda.Stream
_sleep: Callable[[int], None] = torch.cuda._sleep


@dataclass(frozen=True, slots=True)
class Place:
    """The place of checks: the tensors' device, and a compiler of functions for it."""

    device: torch.device
    compile: Callable[..., Function]

    def randn(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers on the device."""
        return torch.randn(*shape, device=self.device)


def on_gpu(device: torch.device) -> Place:
    """A GPU of this machine, with CUDA graphs."""
    return Place(device, partial(torch.compile, backend=compile_fx, mode="reduce-overhead"))


def sizes_are_recorded_one_by_one(place: Place) -> None:
    """CUDA graphs of several sizes of one dynamic dimension: every replay has the requested size."""
    with torch.no_grad():
        function = place.compile(_softmax, dynamic=True)
        for n in (3, 40, 3, 40, 3, 40, 1000, 1000, 1000, 7):
            x = place.randn(n, 64)
            _equal(function(x), _softmax(x))


def operators_of_pytorch_are_recorded(place: Place) -> None:
    """Kernels before and after an operator that PyTorch runs, in one CUDA graph."""
    with torch.no_grad():
        function = place.compile(_sorted)
        for _ in range(5):
            x = place.randn(16, 100)
            _equal(function(x), _sorted(x))


def results_are_kept(place: Place) -> None:
    """No later call overwrites an earlier call's results."""
    with torch.no_grad():
        function = place.compile(_softmax)
        inputs = [place.randn(16, 64) for _ in range(6)]
        for x, y in [(x, function(x)) for x in inputs]:
            _equal(y, _softmax(x))


def parameters_change(place: Place) -> None:
    """Parameters change in place, and move to other memory."""
    layer = nn.Linear(64, 48).eval().to(place.device)
    x = place.randn(9, 64)
    with torch.no_grad():
        function = place.compile(layer)
        for change in (
            lambda: None,
            lambda: layer.weight.mul_(2),
            lambda: setattr(layer.weight, "data", place.randn(48, 64)),
        ):
            change()
            for _ in range(4):
                _equal(function(x), layer(x))


def an_index_out_of_range_is_reported(place: Place) -> None:
    """A later call reports it, once."""
    table = nn.Embedding(20, 16).eval().to(place.device)
    good, bad = (torch.tensor([3, n], device=place.device) for n in (19, 20))
    with torch.no_grad():
        function = place.compile(table)
        for _ in range(3):
            function(good)
        function(bad)
        _wait(place)
        with _raises(IndexOutOfRangeError):
            function(good)
        _equal(function(good), table(good))


def streams_are_kept_to(place: Place) -> None:
    """Work is queued on the current stream, which is not the default one."""
    with torch.no_grad():
        function = place.compile(_softmax)
        for _ in range(3):
            function(place.randn(256, 64))
        side = _new_stream(place.device)
        for _ in range(4):
            x, late = place.randn(256, 64), place.randn(256, 64)
            _wait(place)
            with torch.cuda.stream(side):
                _sleep(20_000_000)
                x.copy_(late)  # late
                y = function(x)
            side.synchronize()
            _equal(y, _softmax(late))


def constants_wait_for_the_stream_that_packs_them(place: Place) -> None:
    """A first call on one stream, whose work comes late, and the next on another."""
    with torch.no_grad():
        layer = nn.Conv2d(32, 32, 3).eval().to(place.device)
        x = place.randn(2, 32, 16, 16)
        want = layer(x)
        function: Function = torch.compile(layer, backend=compile_fx, options={"freeze": True})
        first, second = _new_stream(place.device), _new_stream(place.device)
        _wait(place)
        with torch.cuda.stream(first):
            _sleep(200_000_000)
            function(x)
        with torch.cuda.stream(second):
            got = function(x)
        second.synchronize()
        _equal(got, want)
        _wait(place)


def a_users_graph_holds_a_warm_function(place: Place) -> None:
    """One that is not warm is refused, and the capture's error is ours; nothing is lost by that."""
    with torch.no_grad():
        warm, cold = (torch.compile(f, backend=compile_fx) for f in (_softmax, _outer))
        x = place.randn(64, 64)
        warm(x)
        _wait(place)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = warm(x)
        x.copy_(place.randn(64, 64))
        graph.replay()
        _wait(place)
        _equal(y, _softmax(x))
        with _raises(UnsupportedError, inside=True), torch.cuda.graph(torch.cuda.CUDAGraph()):
            cold(x[0])
        _wait(place)
        _equal(cold(x[0]), _outer(x[0]))


def every_device_runs_its_graphs(place: Place) -> None:
    """Every device works while another one is current."""
    for index in range(torch.cuda.device_count()):
        there = on_gpu(torch.device("cuda", index))
        with torch.cuda.device((index + 1) % torch.cuda.device_count()), torch.no_grad():
            function = there.compile(_softmax)
            for _ in range(4):
                x = there.randn(16, 64)
                _equal(function(x), _softmax(x))


def much_shared_memory_is_asked_for(place: Place) -> None:
    """A block with 96 KiB of shared memory."""
    body = """extern "C" __global__ void __launch_bounds__(256) much(tm_global<const float> a, tm_global<float> b)
{
  tm_shared<float> s = tm_shared_at<float>(0, 24576);
  const int t = threadIdx.x;
  for (int i = t; i < 24576; i += 256) s[i] = a[i];
  tm_barrier();
  for (int i = t; i < 24576; i += 256) b[i] = s[24575 - i];
}
"""
    a, b = np.random.default_rng().standard_normal(24576).astype(np.float32), np.zeros(24576, np.float32)
    hardware.run(CudaSource("much", body, ("base", "portable"), False, (1,), 256, 98304, ()), [a, b], outputs=[1])
    np.testing.assert_array_equal(b, a[::-1])


def no_memory_left_is_an_error(place: Place) -> None:
    """The error is taskmap's and of PyTorch's class; later calls work."""
    function = place.compile(_outer)
    with torch.no_grad(), _raises(DeviceMemoryError):
        function(place.randn(500_000))
    with torch.no_grad():
        x = place.randn(100)
        _equal(function(x), _outer(x))


def another_gpu_is_refused(place: Place) -> None:
    """Code of sm_80 for a GPU that does not run it; and of a GPU that is newer than any."""
    with _raises(NoDeviceError, inside=True):
        torch.compile(_softmax, backend=compile_fx, options={"gpu": "sm_120" if _capability() < 120 else "sm_80"})(
            place.randn(3, 4)
        )


def an_illegal_access_is_an_error(place: Place) -> None:
    """In a process of its own: the GPU's context ends."""
    command = [sys.executable, "-m", "benchmarks.gpu.runtime", "--crash"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "accessed memory that is nobody's" in done.stdout, (done.stdout + done.stderr)[-2000:]


def an_operator_of_ones_own_works(place: Place) -> None:
    """The example: a kernel in script, called in eager mode and inside torch.compile."""
    names = runpy.run_path(str(ROOT / "examples" / "cuda_custom_op.py"))
    with torch.no_grad():
        x = place.randn(2, 5, 48)
        layer: Any = names["Block"](48).to(place.device)
        compiled: Function = torch.compile(layer, backend=compile_fx)
        want = torch.nn.functional.rms_norm(x, (48,), layer.weight, 1e-6)
        _equal(names["rms_norm"](x, layer.weight), want)
        _equal(compiled(x), layer(x))


PORTABLE = (
    sizes_are_recorded_one_by_one,
    operators_of_pytorch_are_recorded,
    results_are_kept,
    parameters_change,
    an_index_out_of_range_is_reported,
)
"""Those that a driver without a GPU can stand in for."""

CHECKS = (
    *PORTABLE,
    streams_are_kept_to,
    constants_wait_for_the_stream_that_packs_them,
    a_users_graph_holds_a_warm_function,
    every_device_runs_its_graphs,
    much_shared_memory_is_asked_for,
    no_memory_left_is_an_error,
    another_gpu_is_refused,
    an_illegal_access_is_an_error,
    an_operator_of_ones_own_works,
)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).softmax(-1)


def _sorted(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x * 2).values + 1


def _outer(x: torch.Tensor) -> torch.Tensor:
    return x[:, None] + x[None, :]


def _equal(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def _wait(place: Place) -> None:
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)


def _capability() -> int:
    return hardware.machine().target.capability


@contextmanager
def _raises(kind: type[Exception], inside: bool = False) -> Iterator[None]:
    """AssertionError unless this error is raised, or, ``inside``, one that was raised because of it."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while inside and cause is not None and not isinstance(cause, kind):
            cause = cause.__cause__ or getattr(cause, "inner_exception", None)
        if not isinstance(cause, kind):
            raise
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def _crash() -> None:
    """Writes to an address that belongs to nobody, and prints the error."""
    body = """extern "C" __global__ void __launch_bounds__(32) wild(tm_global<float> a)
{
  reinterpret_cast<float *>(0x10)[threadIdx.x] = a[threadIdx.x];
}
"""
    try:
        source = CudaSource("wild", body, ("base", "portable"), False, (1,), 32, 0, ())
        hardware.run(source, [np.zeros(32, np.float32)])
    except DeviceError as error:
        print(error)


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if something is wrong; LOST if a kernel has ended the GPU's context."""
    cli = part_options(__doc__, 60.0, "check", 60.0)
    cli.add_argument("--crash", action="store_true", help="run a kernel that ends the GPU's context, and nothing else")
    arguments = cli.parse_args(argv)
    if arguments.crash:
        _crash()
        return 0
    deadline = Deadline(arguments.seconds)
    record = record_of(
        arguments, "gpu_runtime", lambda: GpuConditions.now(0, "standard normal", "PyTorch's eager mode").to_dict()
    )
    place = on_gpu(torch.device("cuda", torch.cuda.current_device()))
    cases = ((check.__name__, partial(_passes, check, place)) for check in CHECKS)
    return record.status if measure_each(record, cases, deadline.over, is_lost, _show) else LOST


def _show(row: dict[str, Any]) -> None:
    why = f": {row['failed'][:600]}" if "failed" in row else ""
    print(f"{'right ' if row['right'] else 'FAILED'}  {row['name']}{why}")


def _passes(check: Callable[[Place], None], place: Place) -> dict[str, Any]:
    torch._dynamo.reset()
    check(place)
    return {"right": True}


if __name__ == "__main__":
    sys.exit(main())
