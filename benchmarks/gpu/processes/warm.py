"""Processes that begin with PyTorch and taskmap imported, which takes longer than most cases: children of one process
that has imported both and never uses the GPU."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

from benchmarks.gpu.parts import ROOT


def can_fork() -> bool:
    """True on a system that forks."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def forked(command: Sequence[str], environment: Mapping[str, str]) -> BaseProcess:
    """A process, begun in a session of its own, that runs ``command``: this Python, -m, a module and its arguments."""
    _begin_server(tuple(sorted(environment.items())))
    _, _, module, *arguments = command
    process: BaseProcess = multiprocessing.get_context("forkserver").Process(
        target=_run, args=(module, arguments, dict(environment))
    )
    process.start()
    return process


@lru_cache(maxsize=1)
def _begin_server(environment: tuple[tuple[str, str], ...]) -> None:
    """The process that all others are forked from; what it imports must be found, and what it prints seen at once."""
    before = dict(os.environ)
    try:
        os.environ.update(environment)
        multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmarks.gpu.processes.imported"])
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
