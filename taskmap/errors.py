"""The errors under their public address. `taskmap.ir.errors` defines them, so that every package can raise them."""

from taskmap.ir.errors import (
    ArchiveError,
    CodegenError,
    CompilerFailedError,
    CompilerNotFoundError,
    DeviceError,
    DeviceMemoryError,
    FusionError,
    GraphError,
    ImportGraphError,
    IndexOutOfRangeError,
    InputError,
    InvalidOptionError,
    KernelResourceError,
    KernelStoreError,
    LayoutError,
    LoweringError,
    MappingError,
    NoDeviceError,
    ScheduleError,
    ScriptError,
    SimulationError,
    TaskmapError,
    TuningError,
    TypeMismatchError,
    UnsupportedError,
    VerifyError,
    WrongCompilerError,
)

__all__ = [
    "ArchiveError", "CodegenError", "CompilerFailedError", "CompilerNotFoundError", "DeviceError",
    "DeviceMemoryError", "FusionError", "GraphError", "ImportGraphError", "IndexOutOfRangeError", "InputError",
    "InvalidOptionError", "KernelResourceError", "KernelStoreError", "LayoutError", "LoweringError", "MappingError",
    "NoDeviceError", "ScheduleError", "ScriptError", "SimulationError", "TaskmapError", "TuningError",
    "TypeMismatchError", "UnsupportedError", "VerifyError", "WrongCompilerError",
]  # fmt: skip
