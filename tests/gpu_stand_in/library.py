"""The stand-in's libcuda.so.1: built by the C compiler, and loaded before anything asks for the driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("libcuda.c")
OnLaunch = Callable[[str, list[int]], object]
"""Called with a kernel's name and the values of its 8-byte parameters: pointers, sizes and the error flag."""

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint), ctypes.c_int,
    ctypes.c_void_p,
)  # fmt: skip
_LAUNCH_FAILED = 719


def folder() -> Path:
    """The folder of the stand-in's builds."""
    return Path(os.environ["TASKMAP_STAND_IN"])


def built(folder: Path) -> Path:
    """The library in ``folder``, compiled unless it is there."""
    path = folder / "libcuda.so.1"
    if path.exists() and path.stat().st_mtime >= SOURCE.stat().st_mtime:
        return path
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "there is no C compiler"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        new = Path(made, path.name)
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{path.name}"]
        subprocess.run([compiler, *flags, "-o", str(new), str(SOURCE), "-ldl"], check=True)
        os.replace(new, path)
    return path


@dataclass
class Stub:
    """The loaded library. ``failures``: what `on_launch` raised, the first first."""

    library: Any
    failures: list[Exception]
    _kept: list[Any]

    @classmethod
    def loaded(cls, folder: Path) -> Stub:
        """Loaded into this process, under the name by which CUDA's bindings look for the driver."""
        return cls(ctypes.CDLL(str(built(folder)), mode=os.RTLD_LOCAL | os.RTLD_NOW), [], [])

    def on_launch(self, function: OnLaunch) -> None:
        """Let ``function`` do what a kernel does; where it raises, the launch fails."""

        def called(symbol: bytes, parameters: Any, sizes: Any, count: int, launch: int) -> int:
            wide = [i for i in range(count) if sizes[i] == 8]
            try:
                function(symbol.decode(), [ctypes.c_longlong.from_address(parameters[i]).value for i in wide])
            except Exception as error:
                self.failures.append(error)
                return _LAUNCH_FAILED
            return 0

        self._kept.append(callback := _Callback(called))
        self.library.stub_on_launch(callback)

    def case(self, name: str) -> None:
        """The name of what is measured now, which $STUB_FAULTS may name."""
        self.library.stub_case(name.encode())

    def host_memory(self) -> None:
        """Tensors are the host's from now on."""
        self.library.stub_host_memory(1)
