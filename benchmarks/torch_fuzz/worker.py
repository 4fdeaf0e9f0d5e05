"""A process that checks programs, and may crash or hang."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import pickle
import resource
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from benchmarks.support.patience import answers
from benchmarks.torch_fuzz import numbers
from benchmarks.torch_fuzz.check import Verdict, check
from benchmarks.torch_fuzz.generate import generate
from benchmarks.torch_fuzz.program import Program

CASE_SECONDS = 60
START_SECONDS = 120
MEMORY = 16 << 30
"""Bytes of address space."""
LIFETIME = 400
"""Programs after which a process is replaced: Dynamo and loaded libraries grow."""


class Worker:
    """Checks programs in a process that is replaced when it dies, hangs, or has done many."""

    def __init__(self, target: str, seconds: int = CASE_SECONDS) -> None:
        """``seconds``: processor time allowed for one request."""
        self.target = target
        self._seconds = seconds
        self._done = 0
        self._pipe: Connection | None = None
        self._process: BaseProcess | None = None

    def generate(self, seed: int) -> Program | None:
        """The program of a seed; None if PyTorch crashed."""
        answer = self._ask(("generate", seed))
        return answer if isinstance(answer, Program) else None

    def check(self, program: Program) -> Verdict:
        answer = self._ask(("check", program))
        return answer if isinstance(answer, Verdict) else Verdict("error", repr(answer))

    def _ask(self, question: Any) -> Any:
        if self._process is None or self._done >= LIFETIME:
            self.close()
            self._start()
        assert self._pipe is not None
        assert self._process is not None
        self._done += 1
        try:
            self._pipe.send(question)
            if answers(self._pipe, self._process.pid, self._seconds):
                return self._pipe.recv()
            verdict = Verdict("hang", f"no answer after {self._seconds // 2} s of work")
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode or 0
            name = signal.Signals(-code).name if code < 0 else str(code)
            verdict = Verdict("crash", f"the process ended with {name}")
        self.close()
        return verdict

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self.target), daemon=True)
        self._process.start()
        other.close()
        self._done = 0
        if not answers(self._pipe, self._process.pid, START_SECONDS) or self._pipe.recv() != "ready":
            raise RuntimeError("a process to check programs in does not start")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process, self._pipe = None, None


def _serve(pipe: Connection, target: str) -> None:
    if target == "cuda":
        numbers.DEVICE = torch.device("cuda")
    else:  # a GPU's driver reserves far more addresses than memory
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    torch.set_num_threads(1)
    torch._dynamo.reset()  # which loads the compiler, once for all programs
    _light()
    pipe.send("ready")
    while True:
        try:
            what, value = pipe.recv()
        except (EOFError, pickle.UnpicklingError):
            return
        try:
            pipe.send(generate(value) if what == "generate" else check(value, target))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")


def _light() -> None:
    """Skip work of Dynamo's that does not pay for small programs: it took a third of a check's time.

    A new program seldom repeats a fake operation; the latency of guards is measured after emptying the caches; and the
    garbage collector walks all of PyTorch.
    """
    torch._dynamo.config.fake_tensor_cache_enabled = False
    torch._dynamo.config.run_gc_after_compile = False
    guards: Any = importlib.import_module("torch._dynamo.guards")
    guards.profile_guard_manager = lambda *args: 0.0
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
