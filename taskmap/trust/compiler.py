"""The C compiler that builds kernels: found, tried once, and given flags with which its code is right."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from taskmap.backend.counters import Counters
from taskmap.backend.cpu.compile import KernelCompiler, team_file
from taskmap.backend.cpu.toolchain import Toolchain, find_toolchain, fingerprint
from taskmap.backend.program import watch
from taskmap.backend.store.objects import KernelStore, default_path
from taskmap.ir.errors import TaskmapError, WrongCompilerError
from taskmap.ir.target import cpu_target
from taskmap.ir.util.lazy import lazily
from taskmap.trust.verdict import (
    CompilerVerdict,
    UntriedError,
    find_verdict,
    keep_verdict,
    verdict_key,
    verdict_of,
)

__all__ = ["trusted_toolchain", "verdict_on"]

_log = logging.getLogger(__name__)
if TYPE_CHECKING:
    from taskmap.trust.ladder import climb as _climb
else:
    _climb = lazily("taskmap.trust.ladder", "climb")
"""Operators and schedules are loaded only for a trial."""
_known: dict[str, CompilerVerdict] = {}
_lock = Lock()
_CORES = 2  # of the trial's target: small kernels run on one


def trusted_toolchain(
    *,
    isa: str | None = None,
    fast_math: bool = False,
    cache_dir: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Toolchain:
    """As ``find_toolchain``, with the flags chosen by a trial of the compiler.

    A compiler is tried on first use, which takes seconds; the verdict is kept in ``cache_dir`` (default: the
    kernel store's folder). Raises WrongCompilerError if no flags of the ladder give right code, and whatever
    ``find_toolchain`` raises.
    """
    toolchain = find_toolchain(isa=isa, fast_math=fast_math, environ=environ)
    verdict = verdict_on(toolchain, cache_dir)
    if verdict is None:
        return toolchain
    if verdict.safer is None:
        raise WrongCompilerError(
            "the C compiler generates wrong code",
            where=f"{shlex.join(toolchain.command)}, {toolchain.identity}",
            why=f"Of {verdict.count} kernels with known results, some are wrong with all flags tried: "
            f"{verdict.wrong[-1]}.",
            hint="Set TASKMAP_CC to another gcc or clang; `taskmap env` shows the result of its trial.",
        )
    return replace(toolchain, safer=verdict.safer)


def verdict_on(toolchain: Toolchain, cache_dir: str | Path | None = None) -> CompilerVerdict | None:
    """The verdict on a compiler, tried if need be; None if it compiles nothing, which its first use then reports."""
    root = default_path() if cache_dir is None else Path(cache_dir)
    key = verdict_key(toolchain, fingerprint(toolchain.command[0]))
    with _lock:
        if key in _known:
            return _known[key]
        verdict = find_verdict(root, key)
        if verdict is None:
            verdict = _try(toolchain)
            if verdict is None:
                return None
            keep_verdict(root, key, toolchain, verdict)
            if verdict.safer is not None:
                _prepare(replace(toolchain, safer=verdict.safer), root)
        _known[key] = verdict
    return verdict


def _prepare(toolchain: Toolchain, root: Path) -> None:
    """Compile what every program needs, the same for all models; if that fails, the first program reports it."""
    try:
        store = KernelStore(root)
        team_file(toolchain, store)
        with closing(KernelCompiler(toolchain, store, Counters(), jobs=1)) as compiler:
            compiler.file(watch.SOURCE)
    except TaskmapError as error:
        _log.debug("the libraries of all programs were not compiled: %s", error)


def _try(toolchain: Toolchain) -> CompilerVerdict | None:
    started = time.perf_counter()
    try:
        outcome = _climb(toolchain, cpu_target(toolchain.isa, _CORES))
    except UntriedError as error:
        _log.debug("the C compiler %s could not be tried: %s", shlex.join(toolchain.command), error)
        return None
    verdict = verdict_of(outcome, time.perf_counter() - started)
    for line in verdict.wrong:
        _log.info("the C compiler %s generates wrong code %s", toolchain.identity, line)
    return verdict
