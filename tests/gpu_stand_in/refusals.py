"""Breaks each rule of the stand-in's driver once: `python -m tests.gpu_stand_in.refusals`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from taskmap.backend.cuda.nvrtc import assemble
from tests.gpu_stand_in.library import Stub, folder

_TEXT = """struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void __launch_bounds__(128) k(float *a, long long n, const __grid_constant__ Map m)
{ __shared__ float s[64]; s[threadIdx.x % 64] = n; __syncthreads(); a[threadIdx.x] = s[5] + m.words[2]; }
"""
_IMAGE = assemble(_TEXT, "k", ["--gpu-architecture=sm_90a"]).image


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


class Calls:
    """The library's functions with good arguments, of which some can be replaced."""

    def __init__(self, library: Any) -> None:
        self.library = library
        assert library.cuInit(0) == 0
        self.context, self.address = ctypes.c_void_p(), ctypes.c_uint64()
        assert library.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0
        assert library.cuCtxSetCurrent(self.context) == 0
        assert library.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(1 << 16)) == 0
        self.loaded, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        assert library.cuLibraryLoadData(ctypes.byref(self.loaded), _IMAGE, None, None, 0, None, None, 0) == 0
        assert library.cuLibraryGetKernel(ctypes.byref(self.kernel), self.loaded, b"k") == 0
        self._room = (ctypes.c_ubyte * 512)()
        self.map = -(-ctypes.addressof(self._room) // 128) * 128

    def encode(self, at: int = 0, kind: int = 6, rank: int = 2, address: int = 0, sizes: tuple[int, int] = (64, 128),
               stride: int = 128, box: tuple[int, int] = (64, 64), steps: tuple[int, int] = (1, 1),
               swizzle: int = 3) -> int:  # fmt: skip
        """A tensor map of 128 × 64 numbers of f16, by boxes of 64 × 64."""
        tensor = ctypes.c_void_p(self.address.value + address)
        return int(self.library.cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.map + at), kind, rank, tensor, (ctypes.c_uint64 * 2)(*sizes),
            (ctypes.c_uint64 * 1)(stride), (ctypes.c_uint32 * 2)(*box), (ctypes.c_uint32 * 2)(*steps), 0, swizzle, 3, 0,
        ))  # fmt: skip

    def launch(self, grid: tuple[int, int, int] = (4, 1, 1), threads: int = 128, shared: int = 0, stream: int = 0,
               cluster: tuple[int, int, int] | None = None, parameters: bool = True, map_at: int = 0,
               hole: bool = False, extra: int = 0) -> int:  # fmt: skip
        """The kernel, with a buffer, a size and a map."""
        assert self.encode() == 0
        values = (ctypes.c_longlong * 2)(self.address.value, 7)
        first = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * 3)(first, 0 if hole else first + 8, self.map + map_at)
        attribute = Attribute(4, 0, (ctypes.c_uint * 16)(*(cluster or ())))
        config = Config(grid, (threads, 1, 1), shared, stream, ctypes.pointer(attribute), int(cluster is not None))
        return int(self.library.cuLaunchKernelEx(
            ctypes.byref(config), self.kernel, addresses if parameters else None, ctypes.c_void_p(extra)
        ))  # fmt: skip


def broken(c: Calls) -> Iterator[tuple[str, Callable[[], int]]]:
    """A rule with a call that breaks it."""
    yield "a map at 48 mod 64", lambda: c.encode(at=48)
    yield "a tensor at 8 mod 16", lambda: c.encode(address=8)
    yield "a tensor beyond its allocation", lambda: c.encode(sizes=(64, 4096))
    yield "a rank of 6", lambda: c.encode(rank=6)
    yield "a type that is none", lambda: c.encode(kind=40)
    yield "a size of 0", lambda: c.encode(sizes=(0, 128))
    yield "a stride of 120 bytes", lambda: c.encode(stride=120)
    yield "a box of 512", lambda: c.encode(box=(64, 512))
    yield "a box whose rows have 24 bytes", lambda: c.encode(box=(12, 64))
    yield "a box wider than the swizzle", lambda: c.encode(box=(64, 64), swizzle=1)
    yield "a step of 0", lambda: c.encode(steps=(1, 0))
    yield "an empty grid", lambda: c.launch(grid=(0, 1, 1))
    yield "a grid of 65,536 down", lambda: c.launch(grid=(1, 65536, 1))
    yield "more threads than were compiled for", lambda: c.launch(threads=256)
    yield "more shared memory than was asked for", lambda: c.launch(shared=50_000)
    yield "a stream that is none", lambda: c.launch(stream=ctypes.addressof(c._room))
    yield "clusters that do not divide the grid", lambda: c.launch(cluster=(3, 1, 1))
    yield "a large cluster", lambda: c.launch(grid=(16, 1, 1), cluster=(16, 1, 1))
    yield "no parameters", lambda: c.launch(parameters=False)
    yield "a parameter that is missing", lambda: c.launch(hole=True)
    yield "a map that was not encoded", lambda: c.launch(map_at=128)
    yield "a map at 32 mod 64", lambda: c.launch(map_at=32)
    yield "parameters given twice", lambda: c.launch(extra=ctypes.addressof(c._room))
    yield "shared memory that no GPU has", lambda: int(c.library.cuKernelSetAttribute(8, 1 << 20, c.kernel, 0))


def misused(c: Calls) -> Iterator[tuple[str, Callable[[], int]]]:
    """A rule of memory, streams, events, libraries or devices, with a call that breaks it."""
    lib, room, word = c.library, ctypes.addressof(c._room), ctypes.c_int()
    memory, beyond = c.address, ctypes.c_uint64(c.address.value + (1 << 16) - 8)
    pointer, out = ctypes.c_void_p(), ctypes.byref(ctypes.c_void_p())
    no_stream, size = ctypes.c_void_p(room), ctypes.c_size_t
    assert lib.cuEventCreate(ctypes.byref(pointer), 2) == 0
    untimed = ctypes.c_void_p(pointer.value)
    assert lib.cuEventCreate(ctypes.byref(pointer), 0) == 0
    fresh = ctypes.c_void_p(pointer.value)
    assert lib.cuEventRecord(untimed, None) == 0
    yield "no memory at all", lambda: lib.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), size(0))
    yield "memory that was not allocated", lambda: lib.cuMemFree_v2(ctypes.c_uint64(memory.value + 256))
    yield "a copy beyond an allocation", lambda: lib.cuMemcpyHtoD_v2(beyond, ctypes.c_void_p(room), size(16))
    yield "a copy from nowhere", lambda: lib.cuMemcpyHtoD_v2(memory, None, size(16))
    yield "a copy back from beyond", lambda: lib.cuMemcpyDtoH_v2(ctypes.c_void_p(room), beyond, size(16))
    yield "zeros beyond an allocation", lambda: lib.cuMemsetD8Async(beyond, 0, size(16), None)
    yield "zeros on no stream", lambda: lib.cuMemsetD8Async(memory, 0, size(16), no_stream)
    yield "no host memory at all", lambda: lib.cuMemHostAlloc(out, size(0), 0)
    yield "a capture of no stream", lambda: lib.cuStreamIsCapturing(no_stream, ctypes.byref(word))
    yield "no stream to wait for", lambda: lib.cuStreamSynchronize(no_stream)
    yield "an event on no stream", lambda: lib.cuEventRecord(fresh, no_stream)
    yield "an event that is none", lambda: lib.cuEventRecord(no_stream, None)
    yield "an event that was not recorded", lambda: lib.cuEventSynchronize(fresh)
    yield (
        "times of an event without them",
        lambda: lib.cuEventElapsedTime_v2(ctypes.byref(ctypes.c_float()), untimed, untimed),
    )
    yield "the end of no event", lambda: lib.cuEventDestroy_v2(no_stream)
    yield "no machine code", lambda: lib.cuLibraryLoadData(out, None, None, None, 0, None, None, 0)
    yield "options of a library", lambda: lib.cuLibraryLoadData(out, _IMAGE, None, None, 1, None, None, 0)
    yield "a kernel of no library", lambda: lib.cuLibraryGetKernel(out, no_stream, b"k")
    yield "a kernel without a name", lambda: lib.cuLibraryGetKernel(out, c.loaded, b"")
    yield "an attribute of no kernel", lambda: lib.cuKernelSetAttribute(8, 1024, no_stream, 0)
    yield "an attribute that is none", lambda: lib.cuKernelSetAttribute(3, 1024, c.kernel, 0)
    yield "a context that is none", lambda: lib.cuCtxSetCurrent(no_stream)
    yield "an attribute of the GPU that is none", lambda: lib.cuDeviceGetAttribute(ctypes.byref(word), 9999, 0)
    yield "flags of the driver", lambda: lib.cuInit(1)


def main() -> None:
    """Prints how many calls were refused, and names those that were not."""
    calls = Calls(Stub.loaded(folder()).library)
    assert calls.encode() == 0
    assert calls.launch(cluster=(2, 1, 1), shared=48_000) == 0
    every = [*broken(calls), *misused(calls)]
    taken = [rule for rule, call in every if call() != 1]
    print(f"refused {len(every) - len(taken)} of {len(every)}", *taken)


if __name__ == "__main__":
    main()
