"""A CUDA driver for machines without one: it records launches, and fails on demand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taskmap.backend.cuda.encoded_map import _Encode

driver = pytest.importorskip("cuda.bindings.driver")
OK = driver.CUresult.CUDA_SUCCESS


@dataclass
class Launched:
    """One launch as the driver saw it: the values are read through the parameter addresses. starts_early: its blocks
    may start before the launch before it has ended."""

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    stream: int
    cluster: tuple[int, ...]
    values: list[int]
    starts_early: bool = False


@dataclass
class FakeApi:
    """The functions of `cuda.bindings.driver` that taskmap calls. ``failures`` maps a function to the status that it
    returns.

    ``counts`` are the numbers of parameters of kernels; ``on_launch`` may do the work of a kernel, and ``on_set``
    (address, byte, count) fill memory.
    """

    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    version: int = 13000
    capability: tuple[int, int] = (9, 0)
    shared: int = 232448
    devices: int = 1
    context: int = 1
    capturing: bool = False
    on_launch: Callable[[Launched], None] = lambda _: None
    on_set: Callable[[int, int, int], object] = lambda *_: None
    launches: list[Launched] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)
    _symbols: list[str] = field(default_factory=list)
    CUresult = driver.CUresult
    CUdevice_attribute = driver.CUdevice_attribute
    CUfunction_attribute = driver.CUfunction_attribute
    CUlaunchConfig = driver.CUlaunchConfig
    CUlaunchAttribute = driver.CUlaunchAttribute
    CUlaunchAttributeID = driver.CUlaunchAttributeID
    CUstream = driver.CUstream
    CUtensorMapDataType = driver.CUtensorMapDataType
    CUtensorMapInterleave = driver.CUtensorMapInterleave
    CUtensorMapSwizzle = driver.CUtensorMapSwizzle
    CUtensorMapL2promotion = driver.CUtensorMapL2promotion
    CUtensorMapFloatOOBfill = driver.CUtensorMapFloatOOBfill
    cuuint32_t = driver.cuuint32_t
    cuuint64_t = driver.cuuint64_t
    CU_MEMHOSTALLOC_PORTABLE = driver.CU_MEMHOSTALLOC_PORTABLE
    CU_MEMHOSTALLOC_DEVICEMAP = driver.CU_MEMHOSTALLOC_DEVICEMAP

    def _answer(self, function: str, *results: Any) -> tuple[Any, ...]:
        if function in self.failures:
            return (getattr(driver.CUresult, self.failures[function]), *[None for _ in results])
        return (OK, *results)

    def cuInit(self, flags: int) -> tuple[Any, ...]:  # noqa: N802  the driver's names
        if self.failures.get("cuInit") == "absent":
            raise RuntimeError("Failed to dlopen libcuda.so.1")
        return self._answer("cuInit")

    def cuDriverGetVersion(self) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuDriverGetVersion", self.version)

    def cuDeviceGetCount(self) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuDeviceGetCount", self.devices)

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuDeviceGet", index)

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuDeviceGetName", b"NVIDIA Fake\0\0")

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:  # noqa: N802
        known = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "MULTIPROCESSOR_COUNT": 132,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self.shared,
        }
        return self._answer("cuDeviceGetAttribute", known[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")])

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuCtxGetCurrent", self.context)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuDevicePrimaryCtxRetain", 7 + device)

    def cuCtxGetDevice(self) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuCtxGetDevice", max(self.context - 7, 0))

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:  # noqa: N802
        self.context = context
        return self._answer("cuCtxSetCurrent")

    def cuLibraryLoadData(self, image: bytes, *options: Any) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuLibraryLoadData", SimpleNamespace(image=image))

    def cuLibraryGetKernel(self, library: Any, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        self._symbols.append(name.decode())
        return self._answer("cuLibraryGetKernel", len(self._symbols) - 1)

    def cuKernelSetAttribute(self, attribute: Any, value: int, kernel: int, device: int) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append((attribute.name, value, self._symbols[kernel], device))
        return self._answer("cuKernelSetAttribute")

    def cuLaunchKernelEx(self, config: Any, kernel: int, parameters: int, extra: int) -> tuple[Any, ...]:  # noqa: N802
        symbol = self._symbols[kernel]
        count = self.counts[symbol]
        places: Any = (ctypes.c_void_p * count).from_address(parameters) if count else []
        values = [ctypes.c_longlong.from_address(place or 0).value for place in places]
        attributes = {a.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"): a.value for a in config.attrs or ()}
        cluster = [attributes[name].clusterDim for name in ("CLUSTER_DIMENSION",) if name in attributes]
        launched = Launched(
            symbol,
            (config.gridDimX, config.gridDimY, config.gridDimZ),
            config.blockDimX,
            config.sharedMemBytes,
            int(config.hStream),
            (cluster[0].x, cluster[0].y, cluster[0].z) if cluster else (),
            values,
            "PROGRAMMATIC_STREAM_SERIALIZATION" in attributes,
        )
        answer = self._answer("cuLaunchKernelEx")
        if answer[0] == OK:
            self.launches.append(launched)
            self.on_launch(launched)
        return answer

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        assert name == b"cuTensorMapEncodeTiled"

        def encode(to: int, dtype: int, rank: int, address: int, *rest: Any) -> int:
            assert to % 128 == 0
            lists = [
                [values[i] for i in range(count)]
                for values, count in zip(rest[:4], (rank, rank - 1, rank, rank), strict=True)
            ]
            self.calls.append(("map", driver.CUtensorMapDataType(dtype), rank, address, *lists, *rest[4:]))
            ctypes.memset(to, 0, 128)
            ctypes.c_longlong.from_address(to).value = address  # recognised by the tensor's address
            return int(self._answer("cuTensorMapEncodeTiled")[0])

        self._kept.append(made := _Encode(encode))
        return self._answer("cuGetProcAddress", ctypes.cast(made, ctypes.c_void_p).value, 0)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: Any) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("set", address, value, size, int(stream)))
        self.on_set(address, value, size)
        return self._answer("cuMemsetD8Async")

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        block = np.full(size, 0xFF, np.uint8)
        self._kept.append(block)
        return self._answer("cuMemHostAlloc", block.ctypes.data)

    def cuStreamIsCapturing(self, stream: Any) -> tuple[Any, ...]:  # noqa: N802
        status = driver.CUstreamCaptureStatus
        now = status.CU_STREAM_CAPTURE_STATUS_ACTIVE if self.capturing else status.CU_STREAM_CAPTURE_STATUS_NONE
        return self._answer("cuStreamIsCapturing", now)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("synchronize", int(stream)))
        return self._answer("cuStreamSynchronize")

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:  # noqa: N802
        self._kept.append(len(self._kept))
        return self._answer("cuEventCreate", len(self._kept))

    def cuEventRecord(self, event: int, stream: Any) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuEventRecord")

    def cuEventSynchronize(self, event: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuEventSynchronize")

    def cuEventElapsedTime(self, first: int, second: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer("cuEventElapsedTime", 1.5 * (second - first))

    def cuEventDestroy(self, event: int) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("destroy", event))
        return self._answer("cuEventDestroy")
