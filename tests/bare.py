"""Runs modules as on a machine with only Python, PyTorch and its dependencies, numpy and cuda-bindings.

python tests/bare.py benchmarks.gpu.corners,benchmarks.gpu.instructions --simulate sm_90a
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

THERE = {
    "torch", "functorch", "torchgen", "triton", "numpy", "cuda", "nvidia", "sympy", "mpmath", "networkx", "jinja2",
    "markupsafe", "filelock", "fsspec", "typing_extensions", "setuptools", "_distutils_hack",
    "taskmap", "benchmarks", "examples", "tests",
}  # fmt: skip


class Bare:
    """A module finder that hides all other installed packages."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``MetaPathFinder.find_spec``."""
        first = name.partition(".")[0]
        there = first in sys.stdlib_module_names or first in THERE
        if there or first.startswith("_sysconfigdata_"):  # the rest of its name is the platform's
            return PathFinder.find_spec(name, path, target)
        return None


def main() -> None:
    """The first argument names modules; the others are passed to each. Exits with the last nonzero exit status."""
    sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
    sys.path[0] = str(Path(__file__).parents[1])
    modules, *arguments = sys.argv[1:]
    status: object = 0
    for module in modules.split(","):
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code or status
    sys.exit(status)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
