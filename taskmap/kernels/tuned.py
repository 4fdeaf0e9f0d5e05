"""The choices of a kernel's parameters: the best ones of the tuning cache, or measured now, on the call's own tensors.

Records are those of operators: ``taskmap cache`` lists, exports and removes them. They apply to one kernel (by the text
of its default, so a changed strategy starts anew), its sizes and types, and the conditions of this machine. Unlike
operators, kernels are measured in this process: one that hangs, hangs here.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from taskmap.ir.errors import CodegenError, CompilerFailedError, InputError, LoweringError, ScheduleError
from taskmap.ir.nodes import Kernel
from taskmap.ir.printer import print_kernel
from taskmap.ir.util.lazy import lazily
from taskmap.kernels.operands import element_type
from taskmap.kernels.parameter import Configuration, TunableParameter, config_text, configurations
from taskmap.options import Options
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.job import Setting
from taskmap.tuning.record import Conditions, Operator, Record, Verdict

# Most machines have no GPU.
if TYPE_CHECKING:
    from taskmap.tuning.cuda_bench import gpu_here as _gpu_here
else:
    _gpu_here = lazily("taskmap.tuning.cuda_bench", "gpu_here")
_SAMPLES = 7
_RUN = 2e-3
"""Seconds of a sample, for kernels that are shorter."""
_AGREES = 1e-2
"""The largest difference from the default's result, relative to its largest element."""
_REFUSED = (ScheduleError, LoweringError, CodegenError, CompilerFailedError, InputError)


class TunableKernel(Protocol):
    """A kernel with parameters: a KernelFunction."""

    name: str
    module: str
    options: Mapping[str, object] | None

    def kernel_for(self, tensors: Sequence[Any], arguments: Mapping[str, Any]) -> Kernel: ...

    def outputs(self, tensors: Sequence[Any], arguments: Mapping[str, Any]) -> list[Any]: ...


def chosen(
    function: TunableKernel, tensors: Sequence[Any], arguments: Mapping[str, Any], free: Mapping[str, TunableParameter],
    target: str, seconds: float | None,
) -> Configuration | None:  # fmt: skip
    """The fastest known choices of the parameters ``free``, measured now for up to ``seconds`` if none is known; None
    if none is known then, and in the simulator, whose time is not a GPU's."""
    if target == "cuda-sim":
        return None
    options = Options.from_user(None, function.options)
    where, here = _machine(options, target)
    operator = _operator(function, tensors, arguments, free, where)
    texts = {config_text(c): c for c in configurations(free)}
    path = database_path(options.cache_dir)
    if seconds is None and not (options.tuned and os.path.exists(path)):
        return None
    with closing(Database(path)) as database:
        best = database.best(operator, here, lambda r: r.config in texts)
        if best is None and seconds is not None:
            database.add(_measured(function, tensors, arguments, texts, seconds, operator, here))
            best = database.best(operator, here, lambda r: r.config in texts)
    return None if best is None else texts[best.config]


def _machine(options: Options, target: str) -> tuple[str, Conditions]:
    if target == "cpu":
        threads = options.threads or os.cpu_count() or 1
        machine = host_target(options, threads)
        return str(machine), conditions(trusted_toolchain(isa=options.isa, cache_dir=options.cache_dir), threads)
    gpu, here = _gpu_here(Setting(1, cache_dir=options.cache_dir, gpu=options.gpu))
    return str(gpu), here


def _operator(
    function: TunableKernel, tensors: Sequence[Any], arguments: Mapping[str, Any], free: Mapping[str, TunableParameter],
    target: str,
) -> Operator:  # fmt: skip
    """The operator of the records: a changed kernel is another one."""
    default = function.kernel_for(tensors, {**next(configurations(free)), **arguments})
    text = hashlib.sha256(print_kernel(default).encode()).hexdigest()[:16]
    shapes = ",".join("x".join(str(int(n)) for n in t.shape) for t in tensors)
    dtypes = ",".join(element_type(t, "tensor").name for t in tensors)
    return Operator(f"kernel.{function.module}.{function.name}", shapes, dtypes, f"text {text}", target)


def _measured(
    function: TunableKernel, tensors: Sequence[Any], arguments: Mapping[str, Any],
    texts: Mapping[str, Configuration], seconds: float, operator: Operator, here: Conditions,
) -> list[Record]:  # fmt: skip
    """A record of each configuration that time allowed, the default first."""
    deadline, found = time.monotonic() + seconds, list[Record]()
    expected: list[Any] = []
    for text, config in texts.items():
        if found and time.monotonic() > deadline:
            break
        try:
            results = function.outputs(tensors, {**config, **arguments})
        except _REFUSED as error:
            found.append(Record(operator, text, Verdict.REFUSED, here, time.time(), reason=str(error)[:500]))
            continue
        expected = expected or results
        if not all(map(_agree, results, expected)):
            reason = "its result differs from the default's"
            found.append(Record(operator, text, Verdict.WRONG, here, time.time(), reason=reason))
            continue
        samples = _samples(lambda c=config: function.outputs(tensors, {**c, **arguments}), tensors[0])  # type: ignore[misc]  # bound here
        found.append(Record(operator, text, Verdict.OK, here, time.time(), samples))
    return found


def _agree(result: Any, expected: Any) -> bool:
    a, b = _array(result), _array(expected)
    if a.size == 0:
        return True
    same = np.isfinite(b)
    worst = np.abs(np.where(same, a - b, 0)).max()
    return bool((np.isfinite(a) == same).all() and worst <= _AGREES * max(1e-30, np.abs(b[same]).max(initial=0)))


def _array(x: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(x if isinstance(x, np.ndarray) else x.detach().double().cpu().numpy(), np.float64)


def _samples(run: Callable[[], object], tensor: Any) -> tuple[float, ...]:
    """Seconds of a call, several times."""

    def wait() -> None:
        if getattr(getattr(tensor, "device", None), "type", "cpu") == "cuda":
            sys.modules["torch"].cuda.synchronize()

    def timed(calls: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            run()
        wait()
        return (time.perf_counter() - began) / calls

    calls = max(1, int(_RUN / max(timed(1), 1e-7)))
    return tuple(timed(calls) for _ in range(_SAMPLES))
