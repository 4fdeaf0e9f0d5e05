"""Functions that load with their first call."""

import subprocess
import sys

import pytest

from taskmap.ir.util.lazy import lazily


def test_the_function_is_called_and_named() -> None:
    join = lazily("posixpath", "join")
    assert join("a", "b") == "a/b"
    assert join("a", "b", "c") == "a/b/c"
    assert join.__name__ == "join"


def test_a_module_that_is_not_there_is_missed_at_the_call() -> None:
    absent = lazily("no_such_module", "function")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        absent()


def test_the_cpu_backend_does_not_wait_for_the_others() -> None:
    code = "import sys, taskmap.torch_backend; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "taskmap.compile.driver" in loaded
    late = (
        "taskmap.targets.cuda",
        "taskmap.targets.sim",
        "taskmap.backend.sim",
        "taskmap.schedules.cuda",
        "taskmap.ir.instructions_",
        "taskmap.ir.lower.gpu",
        "taskmap.ir.verify.rules",
        "taskmap.ir.decompose",
        "taskmap.schedules.strategies",
    )
    assert [name for name in loaded if name.startswith(late)] == []
