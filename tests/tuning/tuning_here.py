"""A small matrix product to tune on this machine, and the arguments for that."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskmap.backend.store.objects import default_path
from taskmap.ir.types import f32
from taskmap.options import Options
from taskmap.schedules import space_of
from taskmap.schedules.cpu.matmul.problem import MatmulProblem
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.job import Job, Setting
from taskmap.tuning.record import Conditions, Operator
from taskmap.tuning.tune import operator_of

PROBLEM = MatmulProblem(1, 12, 96, 32, (f32, f32, f32))
TARGET = host_target(Options(threads=1), 1)
SPACE = space_of(PROBLEM, TARGET)
DEFAULT = str(SPACE.default)
OTHERS = tuple(str(c) for c in SPACE.configs if str(c) != DEFAULT)
FAULTY = (sys.executable, str(Path(__file__).with_name("faulty.py")))


def operator() -> Operator:
    return operator_of(PROBLEM, TARGET)


def setting(folder: Path) -> Setting:
    """Kernels in a store of their own, where this compiler's trial is known: it takes seconds in each process."""
    trusted_toolchain()
    if not (folder / "compilers").exists():
        shutil.copytree(default_path() / "compilers", folder / "compilers")
    return Setting(1, cache_dir=str(folder))


def here() -> Conditions:
    return conditions(trusted_toolchain(), 1)


def job(folder: Path, *others: str, samples: int = 0, faults: tuple[str, ...] = ()) -> Job:
    command = (*FAULTY, *faults) if faults else ()
    return Job(operator(), setting(folder), (DEFAULT, *others), samples, 0.0005, 60.0, {}, command)


@contextmanager
def database(folder: Path) -> Iterator[Database]:
    opened = Database(database_path(str(folder)))
    yield opened
    opened.close()
