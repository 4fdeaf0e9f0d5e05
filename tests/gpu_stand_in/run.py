"""Runs a module as on a machine with a GPU: `python -m tests.gpu_stand_in.run benchmarks.gpu.ladder --rung ...`.

$TASKMAP_STAND_IN is a folder for what is built; $STUB_FAULTS says what goes wrong (see libcuda.c).
"""

from __future__ import annotations

import runpy
import sys

import torch

from benchmarks.gpu import parts
from tests.gpu_stand_in.gpu import stand_in
from tests.gpu_stand_in.library import folder


def main() -> None:
    """The first argument is the module, the others are its own. What starts the parts starts them in the same way."""
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "benchmarks.gpu":
        torch.cuda.is_available = lambda: True
        parts.MODULE = (*parts.MODULE, "tests.gpu_stand_in.run")
    else:
        stand_in(folder())
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
