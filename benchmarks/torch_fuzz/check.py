"""The verdict on a program: eager and compiled, on the same inputs, at each call's sizes."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from benchmarks.torch_fuzz.compare import Difference, differences
from benchmarks.torch_fuzz.program import Program
from benchmarks.torch_fuzz.rounding import explained
from benchmarks.torch_fuzz.run import Run, call
from taskmap.torch_backend import compile_fx

FAILURES = ("value", "mutation", "type", "layout", "alias", "error", "crash", "hang")
"""Verdicts that count against taskmap; the others are "right", "rounding", "refused by eager", "PyTorch's own"."""
LEADS = ("error", "type", "value", "mutation", "alias", "layout")
"""Of several differences the first of these names the verdict."""

JUDGES = ("aot_eager", "aot_eager_decomp_partition")
"""Backends of PyTorch itself. The second one also decomposes and partitions; it judges errors only, because a wrong
value of a decomposition would be an answer of taskmap's."""

VARYING = re.compile(r"backend='\w+'|0x\w+|\d{7,}|\{[^{}]*\}|(?<=n\.args\[0\]=)\w+")
"""Parts of an error's line in which backends that fail alike differ."""


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: str
    evidence: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES


def check(program: Program, target: str) -> Verdict:
    """The outcome of compiling the program for ``target``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = _against(program, lambda f: _taskmap(f, program, target), explain=True)
        if not verdict.failed:
            return verdict
        for backend in JUDGES if verdict.kind == "error" else JUDGES[:1]:
            judge = _against(program, lambda f, b=backend: _other(f, program, b), explain=True)
            if judge.failed and set(_gist(verdict)) <= set(_gist(judge)):
                return Verdict("PyTorch's own", f"{verdict.evidence}\nwith {backend}: {judge.evidence}")
        return verdict


def _gist(verdict: Verdict) -> list[str]:
    """A verdict's evidence without what differs between two backends that fail alike: their name, addresses, sets,
    which print in any order, names of a graph's nodes, the last digits of numbers, from where Dynamo calls them, and
    their words for an index out of range, and the shape of a view beyond its storage."""
    evidence = re.sub(r"^sizes \([^)]*\): ", "", verdict.evidence)
    if verdict.kind == "error":
        told = evidence.splitlines()
        lines = [line for line in told if "Error" in line] or told[:1]
        if any(re.search(r"index.* out of (range|bounds)", line) for line in lines):
            return ["index out of range"]
        if any("out of bounds for storage" in line for line in lines):
            return ["storage out of bounds"]  # of a view that AOTAutograd makes again, in whatever shape
        return [VARYING.sub("", line) for line in lines[:2]]
    return [re.sub(r"-?\d+\.\d+(e[-+]\d+)?", _short, line) for line in evidence.splitlines()]


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2g}"


def _taskmap(function: Callable[..., Any], program: Program, target: str) -> Callable[..., Any]:
    return torch.compile(function, backend=compile_fx, options={"target": target}, dynamic=program.dynamic)


def _other(function: Callable[..., Any], program: Program, backend: str) -> Callable[..., Any]:
    """A backend of PyTorch itself that shares only Dynamo and AOTAutograd with taskmap."""
    return torch.compile(function, backend=backend, dynamic=program.dynamic)


def _against(program: Program, compiler: Callable[..., Callable[..., Any]], explain: bool) -> Verdict:
    torch._dynamo.reset()
    make, function = program.functions()
    compiled = compiler(function)
    names = [i.name for i in program.inputs]
    rounded = ""
    for sizes in program.calls:
        try:
            want = call(function, make(*sizes), program.grad)
        except Exception as error:
            return Verdict("refused by eager", f"{type(error).__name__}: {error}"[:300])
        try:
            inputs = make(*sizes)
            for name, axis in program.mark:
                x = inputs[names.index(name)]
                if x.shape[axis] > 1:
                    torch._dynamo.maybe_mark_dynamic(x, axis)
            got = call(compiled, inputs, program.grad)
        except Exception as error:
            return Verdict("error", f"sizes {sizes}: {_told(error)}")
        found = differences(want, got)
        left = [d for d in found if not (explain and _is_rounding(program, sizes, d, want, got))]
        foretold = _foretold(program, sizes, left, got)
        if left and len(foretold) == len(left):
            return Verdict("PyTorch's own", f"its fake tensors: {left[0]}")
        left = [d for d in left if d not in foretold]
        if left:
            kind = next(k for k in LEADS if any(d.kind == k for d in left))
            return Verdict(kind, f"sizes {sizes}: " + "\n".join(map(str, left)))
        if found:
            rounded = str(found[0])
    return Verdict("rounding", rounded) if rounded else Verdict("right")


def _is_rounding(program: Program, sizes: tuple[int, int, int], found: Difference, want: Run, got: Run) -> bool:
    if found.kind not in ("value", "mutation"):
        return False
    values = dict(want.named())[found.name], dict(got.named())[found.name]
    return bool(explained(program, sizes, found.name, *values))


def _foretold(program: Program, sizes: tuple[int, int, int], found: list[Difference], got: Run) -> list[Difference]:
    """The differences of layout that PyTorch's fake tensors have too, from which a compiler knows strides."""
    left = [d for d in found if d.kind == "layout"]
    values = dict(got.named())
    foretold: list[Difference] = []
    for witness in (_run_on_fakes, _traced):
        if not left:
            break
        try:
            fake = dict(witness(program, sizes).named())
        except Exception:  # a decision that depends on values
            continue
        foretold += [d for d in left if d.name in fake and fake[d.name].stride() == values[d.name].stride()]
        left = [d for d in left if d not in foretold]
    return foretold


def _run_on_fakes(program: Program, sizes: tuple[int, int, int]) -> Run:
    """The program on fake tensors."""
    make, function = program.functions()
    mode = FakeTensorMode(shape_env=ShapeEnv())  # which names the sizes that depend on values
    inputs = [mode.from_tensor(x, static_shapes=True) for x in make(*sizes)]
    with mode:
        return call(function, inputs, False)


def _traced(program: Program, sizes: tuple[int, int, int]) -> Run:
    """The program by a backend that computes nothing: zeros with the strides that AOTAutograd's graph says.

    They can differ from those of fake tensors outside of it, where an axis of size 1 decides the order.
    """
    torch._dynamo.reset()
    make, function = program.functions()
    backend = aot_autograd(fw_compiler=_zeros)
    compiled = torch.compile(function, backend=backend, dynamic=False)
    return call(compiled, make(*sizes), False)


def _zeros(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    results: Any = graph.graph.output_node().args[0]
    metas = [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in results]

    def run(*_: Any) -> list[Any]:
        return [torch.empty_strided(m.shape, m.stride(), dtype=m.dtype).zero_() if isinstance(m, Tensor) else m
                for m in metas]  # fmt: skip

    return make_boxed_func(run)


def _told(error: Exception) -> str:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = f"\nat {last.filename.rsplit('/', 3)[-1]}:{last.lineno}" if last else ""
    return "\n".join(lines[:12])[:1500] + where
