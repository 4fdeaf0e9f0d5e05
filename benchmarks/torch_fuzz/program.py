"""A random program: plain text, so that it can be reduced line by line and printed as a script."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from benchmarks.torch_fuzz.numbers import numbers

SIZES = ("a", "b", "c")
"""The names of sizes, which an input's shape may refer to."""


@dataclass(frozen=True, slots=True)
class Input:
    """One argument: its name and the expression that makes it, of `numbers`, the sizes, and the inputs before it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Program:
    """A function of tensors, and calls of it.

    lines: assignments of one or more names, and statements without a result. results: the names that are returned.
    calls: the values of the sizes a, b, c at each call. dynamic: None, or what torch.compile is told. mark: dimensions
    (input, axis) that are marked dynamic. grad: gradients of the inputs that want them are compared too.
    """

    seed: int
    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    calls: tuple[tuple[int, int, int], ...]
    dynamic: bool | None = None
    mark: tuple[tuple[str, int], ...] = ()
    grad: bool = False

    @property
    def text(self) -> str:
        """The functions `inputs(a, b, c)` and `program(...)`."""
        names = ", ".join(i.name for i in self.inputs)
        made = [f"    {i.name} = {i.text}" for i in self.inputs]
        body = [f"    {line}" for line in self.lines]
        results = "".join(f"{name}, " for name in self.results)
        return "\n".join(
            [
                f"def inputs({', '.join(SIZES)}):",
                *made,
                f"    return [{names}]",
                "",
                "",
                f"def program({names}):",
                *body,
                f"    return ({results})",
                "",
            ]
        )

    def functions(self) -> tuple[Callable[..., list[Any]], Callable[..., tuple[Any, ...]]]:
        """`inputs` and `program`, ready to be called."""
        return _functions(self.text)


@lru_cache(maxsize=64)
def _functions(text: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "numbers": numbers}
    exec(compile(text, "<program>", "exec"), names)
    return names["inputs"], names["program"]


def script(program: Program, target: str, evidence: str = "") -> str:
    """The program as a file that shows the difference when it is run."""
    options = "" if target == "cpu" else f', options={{"target": {target!r}}}'
    if program.dynamic is not None:
        options += f", dynamic={program.dynamic}"
    names = [i.name for i in program.inputs]
    marks = [f"    torch._dynamo.maybe_mark_dynamic(given[{names.index(n)}], {axis})" for n, axis in program.mark]
    backward = [
        "    for results in (want, got):",
        "        outs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]",
        "        torch.autograd.backward([r.double().sum() for r in outs])",
        '    print("gradients:", [x.grad for x in same], [x.grad for x in given])',
    ]
    comment = "".join(f"# {line}\n" for line in evidence.splitlines())
    return "\n".join(
        [
            f"# seed {program.seed}, target {target}",
            comment + "import torch",
            "import torch.nn.functional as F",
            "",
            "",
            f'DEVICE = torch.device("{"cuda" if target == "cuda" else "cpu"}")',
            "",
            "",
            inspect.getsource(numbers),
            "",
            program.text,
            "",
            f'compiled = torch.compile(program, backend="taskmap"{options})',
            f"for sizes in {list(program.calls)}:",
            "    same, given = inputs(*sizes), inputs(*sizes)",
            *marks,
            "    want, got = program(*same), compiled(*given)",
            *(backward if program.grad else []),
            '    for name, left, right in (("result", want, got), ("input", same, given)):',
            "        for k, (w, g) in enumerate(zip(left, right)):",
            '            print(f"{name} {k}", w, g, sep="\\n")',
            "            if isinstance(w, torch.Tensor):",
            "                print(w.dtype, g.dtype, tuple(w.shape), tuple(g.shape), w.stride(), g.stride())",
            "",
        ]
    )
