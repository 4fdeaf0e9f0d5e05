"""Run kernels in a process that may crash: `python child.py job.json`, without taskmap, numpy or torch.

The job names a shared object and, for each kernel, its symbol, the files of its buffers and its sizes. After a kernel
has run, each buffer's file is replaced by the buffer's contents. Each symbol is printed when its kernel has returned.
"""

import contextlib
import ctypes
import json
import sys
from pathlib import Path


def main(path: str) -> None:
    """Run the job at ``path``."""
    job = json.loads(Path(path).read_text())
    for name in job["openmp"]:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            break
    library = ctypes.CDLL(job["library"])
    for kernel in job["kernels"]:
        contents = [bytearray(Path(name).read_bytes()) for name in kernel["buffers"]]
        held = [(ctypes.c_char * len(c)).from_buffer(c) for c in contents]
        error = ctypes.c_int(0)
        arguments: list[object] = [ctypes.c_void_p(ctypes.addressof(h) + job["guard"]) for h in held]
        arguments += [ctypes.c_longlong(size) for size in kernel["sizes"]]
        getattr(library, kernel["symbol"])(*arguments, ctypes.byref(error))
        for name, content in zip(kernel["buffers"], contents, strict=True):
            Path(name).write_bytes(content)
        print(kernel["symbol"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
