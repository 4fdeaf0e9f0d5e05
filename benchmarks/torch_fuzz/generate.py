"""A program from a seed: inputs, then steps that eager takes at the sizes of every call."""

from __future__ import annotations

import random
import re
import warnings
from typing import Any

import torch
from torch import Tensor

from benchmarks.torch_fuzz.contractions import CONTRACTIONS, NORMS
from benchmarks.torch_fuzz.memory import INDEXING, INPLACE
from benchmarks.torch_fuzz.numbers import numbers
from benchmarks.torch_fuzz.operators import BINARY, REDUCTIONS, UNARY, Operator
from benchmarks.torch_fuzz.program import SIZES, Input, Program
from benchmarks.torch_fuzz.rare import RARE
from benchmarks.torch_fuzz.scope import DTYPES, FEW_ELEMENTS, FLOATS, NoChoiceError, Scope
from benchmarks.torch_fuzz.views import REARRANGE, VIEWS

KINDS: dict[str, tuple[float, list[Operator]]] = {
    "unary": (4, UNARY),
    "binary": (4, BINARY),
    "reduction": (2.5, REDUCTIONS),
    "view": (4.5, VIEWS),
    "rearrange": (1.5, REARRANGE),
    "indexing": (1.5, INDEXING),
    "in place": (2.5, INPLACE),
    "contraction": (2, CONTRACTIONS),
    "norm": (0.8, NORMS),
    "rare": (3, RARE),
}
"""Weight and operators of each kind."""
MOST_STEPS = 14
SMALL = (2, 3, 4, 5, 6, 7, 8)
ODD = (0, 1, 1, 16, 17, 33)


def generate(seed: int) -> Program:
    """The program of a seed; the same for the same PyTorch."""
    draw = random.Random(seed)
    dynamic = draw.random() < 0.25
    grad = draw.random() < 0.25
    calls = _sizes(draw, dynamic)
    inputs = _inputs(draw, grad)
    names = [i.name for i in inputs]
    program = Program(seed, inputs, (), (), calls, grad=grad)
    make, _ = program.functions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = Scope(draw, [dict(zip(names, make(*sizes), strict=True)) for sizes in calls], tuple(names), dynamic)
        scope.names = list(names)
        lines = _steps(scope, draw.randint(1, MOST_STEPS))
    marked = dynamic and draw.random() < 0.5
    mark = _marks(names, make(*calls[0])) if marked else ()
    choose = True if dynamic and not marked else None
    results = _results(draw, scope, lines)
    return Program(seed, inputs, tuple(lines), results, calls, choose, mark, grad)


def _sizes(draw: random.Random, dynamic: bool) -> tuple[tuple[int, int, int], ...]:
    def one() -> int:
        return draw.choice(ODD if draw.random() < 0.2 else SMALL)

    if not dynamic:
        return ((one(), one(), one()),)
    first = draw.sample(SMALL, 3)
    later = [tuple(one() for _ in SIZES) for _ in range(draw.choice((1, 1, 2)))]
    return ((first[0], first[1], first[2]), *((s[0], s[1], s[2]) for s in later))


def _inputs(draw: random.Random, grad: bool) -> tuple[Input, ...]:
    shape = [draw.choice(SIZES) if draw.random() < 0.9 else "1" for _ in range(draw.choice((0, 1, 2, 2, 2, 3, 3, 4)))]
    inputs: list[Input] = []
    for k in range(draw.choice((1, 2, 2, 3))):
        if k and not grad and draw.random() < 0.06:
            base = draw.choice(inputs).name
            inputs.append(Input(f"x{k}", base + draw.choice(("[1:]", "[:1]", ".t()", "[...]", ".detach()", "[::2]"))))
            continue
        mine = shape
        if k and draw.random() < 0.4:
            mine = draw.choice(([n if draw.random() < 0.6 else "1" for n in shape], shape[1:], shape[::-1], []))
        inputs.append(Input(f"x{k}", _input(draw, mine, grad)))
    made: list[Input] = []
    for i in inputs:  # a view that its base has not the rank for is a copy of nothing: the base itself
        program = Program(0, (*made, i), (), (), ((2, 3, 4),))
        try:
            program.functions()[0](2, 3, 4)
            made.append(i)
        except (RuntimeError, IndexError):
            made.append(Input(i.name, i.text.split("[")[0].split(".")[0]))
    return tuple(made)


def _input(draw: random.Random, shape: list[str], grad: bool) -> str:
    """The expression that makes one input, contiguous or not."""
    dtype = draw.choice(FLOATS if draw.random() < (0.8 if grad else 0.3) else DTYPES)
    special = draw.choice((2, 5, 20)) if draw.random() < (0.04 if grad else 0.15) else 0
    if special and draw.random() < 0.3:
        special = -special
    layout = draw.random() if shape else 1.0
    sizes, after = list(shape), ""
    if layout < 0.1:
        k = draw.randrange(len(shape))
        sizes[k] = f"{shape[k]} * 2"
        after = f"[{':, ' * k}{draw.choice(('::2', '1::2'))}]"
    elif layout < 0.2:
        sizes, after = [*shape[1:], shape[0]], ".movedim(-1, 0)"
    elif layout < 0.26:
        k = draw.randrange(len(shape))
        sizes[k], after = "1", f".expand({''.join(n + ', ' for n in shape)})"
    elif layout < 0.32:
        sizes[0], after = f"{shape[0]} + 2", "[1:-1]"
    elif layout < 0.38:
        sizes, after = shape[::-1], f".permute({list(range(len(shape)))[::-1]})"
    elif layout < 0.42 and len(shape) == 4:
        after = ".contiguous(memory_format=torch.channels_last)"
    more = f", {special}" if special else ""
    text = f"numbers({draw.randrange(1 << 20)}, ({''.join(n + ', ' for n in sizes)}), {dtype}{more}){after}"
    return text + (".requires_grad_()" if grad and dtype.is_floating_point and draw.random() < 0.85 else "")


def _steps(scope: Scope, wanted: int) -> list[str]:
    lines: list[str] = []
    weights = [weight for weight, _ in KINDS.values()]
    for _ in range(4 * wanted):
        if len(lines) == wanted:
            break
        _, operators = scope.random.choices(list(KINDS.values()), weights)[0]
        step = _step(scope, scope.random.choice(operators))
        if step is not None:
            lines.append(step)
    return lines


def _step(scope: Scope, operator: Operator) -> str | None:
    """One more line, accepted by eager in every call; None when the operator does not apply."""
    try:
        text = operator.write(scope, scope.pick(operator.accepts))
    except (NoChoiceError, IndexError, ValueError, RuntimeError):  # RuntimeError: a view that autograd has given up
        return None
    names = [scope.new() for _ in range(operator.results)]
    line = f"{', '.join(names)} = {text}" if names else text
    try:
        if names and not all(_small(_value(text, call), len(names)) for call in scope.calls):
            return None
    except Exception:
        return None
    try:
        for call in scope.calls:
            exec(compile(line, "<step>", "exec"), {"torch": torch, "F": torch.nn.functional, "numbers": numbers}, call)
    except Exception:  # what a statement has written by then shows in this scope alone
        return None
    scope.names += names
    return line


def _value(text: str, call: dict[str, Any]) -> Any:
    return eval(text, {"torch": torch, "F": torch.nn.functional}, dict(call))


def _small(value: Any, count: int) -> bool:
    values = [value] if count == 1 else list(value)
    return len(values) == count and all(isinstance(v, Tensor) and v.numel() <= FEW_ELEMENTS for v in values)


def _marks(names: list[str], inputs: list[Tensor]) -> tuple[tuple[str, int], ...]:
    return tuple((n, k) for n, x in zip(names, inputs, strict=True) for k, size in enumerate(x.shape) if size > 1)


def _results(draw: random.Random, scope: Scope, lines: list[str]) -> tuple[str, ...]:
    """Most values that no line uses, so that little code is dead, and a few others, including arguments."""
    used = set(re.findall(r"\b[vx]\d+\b", " ".join(line.split(" = ", 1)[-1] for line in lines)))
    results = [n for n in scope.names if n not in used and n not in scope.inputs and draw.random() < 0.8]
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        results.append(draw.choice(scope.names))
    draw.shuffle(results)
    return tuple(results[:6] or scope.names[-1:])
