"""A measurement in a process of its own: a crash or a hang is a finding, and memory is given back."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.support.patience import answers

Found = dict[str, Any]


def apart(work: Callable[[], Found], seconds: int) -> Found:
    """The result of ``work`` in a forked process, or an entry "failure" if it raises, crashes or takes longer.

    The parent must not have computed in parallel before: a fork has no copies of threads.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send, args=(work, theirs), daemon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of idle threads, which hold no lock
        child.start()
    theirs.close()
    try:
        if not answers(ours, child.pid, seconds):
            return {"failure": f"no result within {seconds} s"}
        found: Found = ours.recv()
        return found
    except EOFError:
        child.join()
        return {"failure": f"the process ended with status {child.exitcode}"}
    finally:
        child.kill()
        child.join()


def _send(work: Callable[[], Found], pipe: Connection) -> None:
    try:
        found = work()
    except Exception as problem:  # tells the parent, which reports it
        lines = f"{type(problem).__name__}: {problem}".strip().splitlines()
        found = {"failure": lines[0]}
    pipe.send(found)
