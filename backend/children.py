"""Compiler processes that can all be ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

_SHOWN_BYTES = 1 << 20


class CancelledError(Exception):
    """The whole compilation was cancelled: this process was ended, or never started."""


class OutOfTimeError(Exception):
    """A process exceeded its time limit and was ended."""


@dataclass(slots=True)
class Children:
    """Processes started from several threads. Each leads its own process group, so that its children end with it."""

    _running: set[int] = field(default_factory=set)
    _cancelled: bool = False
    _lock: Lock = field(default_factory=Lock, repr=False)

    def run(
        self, command: Sequence[str], *, stdin: bytes, environment: Mapping[str, str], folder: str, timeout: float
    ) -> tuple[int, str]:
        """Runs `command` in `folder` to its end, at most `timeout` seconds; returns its exit status and its error
        output.

        Raises CancelledError, OutOfTimeError, and OSError if the command cannot be started.
        """
        with self._lock:
            if self._cancelled:
                raise CancelledError
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
            self._running.add(process.pid)
        try:
            _, complaints = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        finally:
            self._end(process)
        if self._cancelled:
            raise CancelledError
        return process.returncode, complaints[:_SHOWN_BYTES].decode(errors="replace")

    def cancel(self) -> None:
        """Ends every process, and starts none from now on."""
        with self._lock:
            self._cancelled = True
            for pid in self._running:
                kill_group(pid)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process.pid)
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def kill_group(pid: int) -> None:
    """Kill the process group of a child, if it still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
