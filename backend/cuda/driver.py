"""The CUDA driver: every call is checked, and every failure is an error with a remedy.

Kernels are loaded as libraries, which belong to no context: one serves all devices. ``api`` stands for the functions of
`cuda.bindings.driver` that are used here, so that tests can replace them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from taskmap.backend.cuda.encoded_map import EncodedMap, MapEncoder
from taskmap.backend.cuda.tensor_map import TensorView
from taskmap.ir.errors import (
    CompilerNotFoundError,
    DeviceError,
    DeviceMemoryError,
    NoDeviceError,
    TaskmapError,
    UnsupportedError,
)

OLDEST_DRIVER = 13000
"""The version of CUDA that a driver must support for the machine code that NVRTC 13 makes."""

_MAJOR, _MINOR = "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"
_LARGE_SHARED = 48 << 10  # more than this must be requested
_LARGE_CLUSTER = 8  # likewise
_BROKEN = "This process can no longer use the GPU: start it again."
_FIND = "CUDA_LAUNCH_BLOCKING=1 finds the kernel; the option target='cuda-sim' runs it with every access checked."


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One GPU: ``capability`` as (9, 0); ``shared_per_block`` is the most that a block may request, in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_per_block: int


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of a loaded library. ``library`` keeps the code alive."""

    symbol: str
    handle: Any
    library: Any


class Driver:
    """The driver with its devices. Raises NoDeviceError if there is none, or if it is too old."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self._encoder: MapEncoder | None = None
        self._process = os.getpid()
        self._contexts: dict[int, Any] = {}
        try:
            status = api.cuInit(0)[0]
        except RuntimeError as error:  # the bindings raise it if they find no libcuda.so.1
            raise NoDeviceError(
                "there is no NVIDIA driver",
                why=f"{error}.",
                hint="Install it, or use the option target='cuda-sim', which needs no GPU.",
            ) from error
        name = self._name(status)
        if name == "CUDA_ERROR_NO_DEVICE":
            raise NoDeviceError(
                "there is no NVIDIA GPU", why="the driver sees none.", hint="CUDA_VISIBLE_DEVICES may hide them."
            )
        self.check(status, "cuInit")
        self.version = int(self.call("cuDriverGetVersion"))
        if self.version < OLDEST_DRIVER:
            raise NoDeviceError(
                "the NVIDIA driver is too old",
                why=f"it supports CUDA {_dotted(self.version)}, and kernels are compiled for {_dotted(OLDEST_DRIVER)}.",
                hint="Install a driver of branch 580 or newer.",
            )

    def refuse_newer(self, compiler: str, version: tuple[int, int]) -> None:
        """Raises NoDeviceError if a compiler belongs to a newer major version of CUDA, whose machine code the driver
        does not load. Within a major version, older drivers load the output of newer compilers."""
        if version[0] <= self.version // 1000:
            return
        raise NoDeviceError(
            "the NVIDIA driver is older than the compiler of kernels",
            where=compiler,
            why=f"the driver supports CUDA {_dotted(self.version)}, and loads no machine code of CUDA {version[0]}.",
            hint=f"Use an NVRTC of the driver's version: pip install 'nvidia-cuda-nvrtc=={self.version // 1000}.*'.",
        )

    # Devices.

    def device_count(self) -> int:
        """The number of GPUs that the process sees."""
        return int(self.call("cuDeviceGetCount"))

    def device(self, index: int) -> DeviceInfo:
        """The GPU number ``index``. Raises NoDeviceError."""
        count = self.device_count()
        if not 0 <= index < count:
            raise NoDeviceError(f"there is no GPU number {index}", why=f"the driver sees {count}.")
        handle = self.call("cuDeviceGet", index)
        attributes = [_MAJOR, _MINOR, "MULTIPROCESSOR_COUNT", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]
        major, minor, multiprocessors, shared = (self._attribute(handle, name) for name in attributes)
        name = bytes(self.call("cuDeviceGetName", 128, handle)).decode(errors="replace").rstrip("\0 ")
        return DeviceInfo(index, name, (major, minor), multiprocessors, shared)

    def _attribute(self, device: Any, name: str) -> int:
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", attribute, device))

    def ensure_context(self, index: int) -> None:
        """Makes a context of a device current in this thread: its primary one, which PyTorch uses, if none is
        current or one of another device. Raises DeviceError in a process that was forked from the one that opened
        the driver."""
        if os.getpid() != self._process:
            raise self._forked()
        if int(self.call("cuCtxGetCurrent")) != 0 and int(self.call("cuCtxGetDevice")) == index:
            return
        context = self._contexts.get(index)
        if context is None:
            context = self.call("cuDevicePrimaryCtxRetain", self.call("cuDeviceGet", index))
            self._contexts[index] = context
        self.call("cuCtxSetCurrent", context)

    # Kernels.

    def load(self, image: bytes, symbol: str, compiled: str) -> LoadedKernel:
        """The kernel ``symbol`` of a CUBIN; ``compiled`` names its compiler and architecture, for messages."""
        where = f"{symbol}, compiled by {compiled}"
        library = self.call("cuLibraryLoadData", image, [], [], 0, [], [], 0, where=where)
        return LoadedKernel(symbol, self.call("cuLibraryGetKernel", library, symbol.encode(), where=where), library)

    def allow(self, kernel: LoadedKernel, index: int, shared_bytes: int, cluster: Sequence[int]) -> None:
        """Allows a kernel this much dynamic shared memory, and clusters of this size, on a device."""
        device = self.call("cuDeviceGet", index)
        wanted: list[tuple[str, int]] = []
        if shared_bytes > _LARGE_SHARED:
            most = self._attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
            if shared_bytes > most:
                raise NoDeviceError(
                    f"kernel {kernel.symbol} needs more shared memory than the GPU has",
                    why=f"it needs {shared_bytes} bytes in a block, and GPU {index} has {most}.",
                    hint="Compile for the GPU that runs it: leave the option 'gpu' out.",
                )
            wanted.append(("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes))
        if cluster[0] * cluster[1] * cluster[2] > _LARGE_CLUSTER:
            wanted.append(("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1))
        for name, value in wanted:
            attribute = getattr(self.api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            self.call("cuKernelSetAttribute", attribute, value, kernel.handle, device, where=kernel.symbol)

    def launch(self, kernel: LoadedKernel, config: Any, parameters: int) -> None:
        """Launch with a configuration that ``launch_config`` made; ``parameters`` is the address of their addresses."""
        status = self.api.cuLaunchKernelEx(config, int(kernel.handle), parameters, 0)[0]
        if status != 0:
            shape = f"grid {config.gridDimX} × {config.gridDimY} × {config.gridDimZ}, {config.blockDimX} threads"
            self.check(status, f"{kernel.symbol}, {shape}, {config.sharedMemBytes} bytes of shared memory")

    def launch_config(self, threads: int, shared_bytes: int, cluster: Sequence[int], *, waits: bool = False) -> Any:
        """A launch configuration whose grid and stream are still to be set. ``waits``: the kernel itself waits for the
        grid before it, so its blocks may start earlier, which hides the time of the launch (CUDA Programming Guide,
        "Programmatic Dependent Launch")."""
        config = self.api.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        ids, attributes = self.api.CUlaunchAttributeID, list[Any]()
        if tuple(cluster) != (1, 1, 1):
            attribute = self.api.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimension = attribute.value.clusterDim
            dimension.x, dimension.y, dimension.z = cluster
            attributes.append(attribute)
        if waits:
            attribute = self.api.CUlaunchAttribute()
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def tensor_map(self, view: TensorView, where: str) -> EncodedMap:
        """The 128 bytes that describe a tensor to TMA; beyond its edges TMA reads zeros."""
        if self._encoder is None:
            self._encoder = MapEncoder(
                self.api, int(self.call("cuGetProcAddress", *MapEncoder.arguments_of_lookup())[0])
            )
        status, made = self._encoder(view)
        if status != 0:
            where = f"{where}, the tensor map of {view.sizes} by boxes of {view.box} at {view.address:#x}"
            self.check(self.api.CUresult(status), where)
        return made

    # Host memory that kernels can write, streams and time.

    def host_words(self, count: int) -> ctypes.Array[ctypes.c_int]:
        """``count`` zeroed ints of the host, at an address that kernels can use as well. They are never freed."""
        flags = self.api.CU_MEMHOSTALLOC_PORTABLE | self.api.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(self.call("cuMemHostAlloc", 4 * count, flags))
        words = (ctypes.c_int * count).from_address(address)
        ctypes.memset(address, 0, 4 * count)
        return words

    def refuse_capture(self, stream: int) -> None:
        """Raises UnsupportedError while a CUDA graph is captured on a stream: the driver calls of a first launch would
        end the capture."""
        status = self.call("cuStreamIsCapturing", self.api.CUstream(stream))
        if str(getattr(status, "name", status)) != "CU_STREAM_CAPTURE_STATUS_NONE":
            raise UnsupportedError(
                "a CUDA graph is being captured that cannot hold the first launch of a kernel",
                why="memory and attributes of kernels are asked for at the first launch, not at each replay.",
                hint="Run it once before the capture.",
            )

    def clear(self, address: int, size: int, stream: int) -> None:
        """Fills GPU memory with zeros, in stream order."""
        self.call("cuMemsetD8Async", address, 0, size, self.api.CUstream(stream))

    def synchronize(self, stream: int, where: str) -> None:
        """Waits for all work of a stream. Raises the error of a kernel that failed."""
        self.call("cuStreamSynchronize", self.api.CUstream(stream), where=where)

    def record(self, stream: int) -> Any:
        """An event, recorded in stream order."""
        event = self.call("cuEventCreate", 0)
        self.call("cuEventRecord", event, self.api.CUstream(stream))
        return event

    def elapsed(self, events: Sequence[Any]) -> tuple[float, ...]:
        """The seconds between neighbouring events, once the last has happened; destroys the events."""
        self.call("cuEventSynchronize", events[-1])
        seconds = tuple(float(self.call("cuEventElapsedTime", a, b)) / 1e3 for a, b in pairwise(events))
        for event in events:
            self.call("cuEventDestroy", event)
        return seconds

    # Calls and their errors.

    def call(self, function: str, *arguments: Any, where: str | None = None) -> Any:
        """The result of a driver function (a tuple for several, None for none). Raises DeviceError."""
        status, *results = getattr(self.api, function)(*arguments)
        self.check(status, where or function)
        return results[0] if len(results) == 1 else tuple(results) or None

    def check(self, status: Any, where: str) -> None:
        """Raises the error that a status stands for."""
        if int(status) != 0:
            raise self._error(self._name(status), where)

    def _name(self, status: Any) -> str:
        return str(getattr(status, "name", status))

    def _forked(self) -> DeviceError:
        return DeviceError(
            "the GPU cannot be used in a forked process",
            why=f"process {self._process} has used it before the fork, and what the driver keeps does not survive one.",
            hint="Start processes by 'spawn': multiprocessing.get_context('spawn').",
        )

    def _error(self, name: str, where: str) -> TaskmapError:
        if os.getpid() != self._process:
            return self._forked()
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            return DeviceMemoryError(
                "the GPU has no memory left", where=where, hint="Use a smaller batch, or torch.cuda.empty_cache()."
            )
        if name in _WRONG_CODE:
            return NoDeviceError(
                "the GPU cannot run a kernel",
                where=where,
                why=f"{name}: the machine code is for another GPU, or its compiler is newer than the driver, "
                f"which supports CUDA {_dotted(self.version)}.",
                hint="Use the NVRTC of the driver's version: pip install 'nvidia-cuda-nvrtc==13.0.*'.",
            )
        if name in _CRASHES:
            # The driver reports at the next call, so the failed kernel may have been launched earlier.
            return DeviceError(
                f"a kernel failed: {_CRASHES[name]}",
                where=f"noticed at {where}",
                why=f"{name}.",
                hint=f"{_BROKEN}\n{_FIND}",
            )
        if name == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES":
            return DeviceError("a kernel takes more registers or threads than the GPU has", where=where, why=f"{name}.")
        return DeviceError("the CUDA driver refused a call", where=where, why=f"{name}.")


_WRONG_CODE = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
}
# After one of these every call in the process fails with the same status.
_CRASHES = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "it accessed memory that is nobody's",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "it accessed memory at a misaligned address",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "it used an address of another kind of memory",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "it executed an illegal instruction",
    "CUDA_ERROR_INVALID_PC": "it jumped to an address without code",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "its stack overflowed",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "it ran longer than the system allows",
    "CUDA_ERROR_LAUNCH_FAILED": "it ended abnormally",
    "CUDA_ERROR_ASSERT": "an assertion in it failed",
}


@lru_cache(maxsize=1)
def open_driver() -> Driver:
    """The machine's driver. Raises CompilerNotFoundError without the bindings, and NoDeviceError."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]  no stubs
    except ImportError as error:
        raise CompilerNotFoundError(
            "the Python bindings of CUDA are not installed",
            why=f"{error}.",
            hint="Install them: pip install 'cuda-bindings==13.0.*'.",
        ) from error
    return Driver(driver)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
