"""The test suite's kernels of the GPU templates, on the GPU: tests of the simulator, each with its own bounds.

python -m benchmarks.gpu.suite [--seconds 30] [--out FOLDER] [--resume]
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks.gpu import plugin
from benchmarks.gpu.command import part_options, record_of
from benchmarks.gpu.conditions import ROOT, GpuConditions
from benchmarks.gpu.hardware import is_lost
from benchmarks.gpu.record import LOST, WRONG, Record
from benchmarks.gpu.timing import Deadline

_PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "filterwarnings=", "--no-header", "--tb=short")


def files() -> list[str]:
    """The files of tests that run correct kernels. Those of broken kernels would end the process's GPU context."""
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/schedules/cuda").glob("test_*.py"))]


class Watched:
    """Records each test, skips those that an earlier process has run, and stops when time is up."""

    def __init__(self, record: Record, deadline: Deadline) -> None:
        self.record, self.deadline, self.lost = record, deadline, False
        self._failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Called before the first test."""
        record = self.record
        items[:] = [item for item in items if record.wants(item.nodeid) and not record.has(item.nodeid)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Replaces a test for which there is no time or no GPU."""
        if not self.deadline.over() and not self.lost:
            return None
        self.record.skipped.append(item.nodeid)
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Before a test."""
        self.record.begin(nodeid)
        self.record.watchdog.arm()
        self._failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each phase of a test."""
        if report.failed:
            self._failed = str(report.longrepr)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """After a test."""
        row: dict[str, Any] = {"name": nodeid, "right": not self._failed}
        if self._failed:
            row["failed"], self.lost = self._failed[-2000:], is_lost()
        self.record.watchdog.disarm()
        self.record.end(row)


def main(argv: list[str] | None = None, tests: list[str] | None = None) -> int:
    """The command: 0, or WRONG if a test fails; LOST if a kernel has ended the GPU's context."""
    cli = part_options(__doc__, 60.0, "test")
    arguments = cli.parse_args(argv)
    record = record_of(arguments, "gpu_kernels", lambda: GpuConditions.now(0, "the tests' own", "float64").to_dict())
    watched = Watched(record, Deadline(arguments.seconds))
    pytest.main([*_PYTEST, "--rootdir", str(ROOT), *(tests or files())], plugins=[plugin, watched])
    record.write()
    if watched.lost:
        return LOST
    return record.status if record.rows else WRONG


if __name__ == "__main__":
    sys.exit(main())
