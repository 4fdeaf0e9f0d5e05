"""The engine on processors for which the switch between fibers is not written, and without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """\
from pathlib import Path
from taskmap.backend.sim import toolchain
toolchain._ENGINE_FLAGS += ("-DTM_PORTABLE_SWITCH", "-Werror", "-Wno-unknown-pragmas")
from taskmap.backend.store.objects import KernelStore
from tests.backend.sim.test_memory import matmul, matrices, run
import numpy as np
for checks in (True, False):
    a, b, c = matrices()
    run(matmul(), [a, b, c], outputs=[2], checks=checks, store=KernelStore(Path("store")))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=0, atol=1e-4)
print("right")
"""


def test_fibers_by_the_c_library(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{_PROGRAM}"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert answer.stdout == "right\n", answer.stderr
