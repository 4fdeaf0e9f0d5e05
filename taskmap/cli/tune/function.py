"""`taskmap tune module:function`: tune the operators of a PyTorch model, or of a function of tensors.

The name after the colon is looked up in the module, dots included. It may be

- a model (a `torch.nn.Module`), or a function of tensors;
- a kernel (`@taskmap.kernel`), whose parameters are tuned;
- a function without required parameters: it is called, and returns a model, or (model, inputs), or
  (model, inputs, keywords).

The inputs are those returned with the model; else its attribute `example_inputs`, a tuple or a function that
returns one; else random ones of the sizes in --shape.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from taskmap.cli.options import folder_of
from taskmap.cli.output import print_json
from taskmap.cli.shapes import Shape
from taskmap.cli.tune.parsers import budget_of
from taskmap.cli.tune.session import report_model
from taskmap.compile.session import new_session
from taskmap.graph.importers.torch.types import torch_dtype
from taskmap.ir.errors import InputError
from taskmap.ir.types import dtype_named
from taskmap.kernels.function import KernelFunction
from taskmap.kernels.parameter import config_text
from taskmap.options import Options
from taskmap.torch_backend import compile_captured

_SHAPE = re.compile(r"(\d{1,9}(?:x\d{1,9})*|scalar)(?::(f64|f32|f16|bf16|i64|i32|bool))?")
_LARGEST = 1 << 32


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A function of tensors, and its arguments."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


def tune_function(a: argparse.Namespace) -> int:
    """Tune the operators of the named function; 1 if it has none that can be tuned."""
    torch.manual_seed(a.seed)
    found = _find(a.function)
    if isinstance(found, KernelFunction):
        return _tune_kernel(found, a)
    call = call_of(a.function, _texts(a.shape))
    with ExitStack() as stack:
        if a.threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(a.threads)
        options = Options(target=a.target, isa=a.isa, threads=a.threads, tune_seconds=a.seconds, cache_dir=folder_of(a))
        device = torch.device(a.target)
        session = new_session(options, device)
        if session.choices is not None:
            session.choices.budget = budget_of(a)
        _run(call, partial(compile_captured, session=session), device, a.train)
        return report_model(session.choices, {}, a.json)


def _tune_kernel(kernel: KernelFunction, a: argparse.Namespace) -> int:
    """Tune the parameters of a kernel on random tensors of the shapes in --shape."""
    inputs = [_random(shape).to(a.target) for shape in _texts(a.shape)]
    best = config_text(replace(kernel, options={"cache_dir": folder_of(a)}).tune(*inputs, seconds=a.seconds))
    if a.json:
        print_json({"kernel": kernel.name, "best": best})
    else:
        print(f"best: {best}")
    return 0


def _texts(shapes: Sequence[Shape]) -> list[str]:
    """The shapes of a function's inputs. Raises InputError for a shape with a name."""
    for shape in shapes:
        if shape.name:
            raise InputError(
                f"--shape {shape.text} names a dimension or an input",
                why="those of a PyTorch function have no names.",
                hint="Give the shape of each input in order: --shape 1x3x224x224.",
            )
    return [shape.text for shape in shapes]


def _run(call: RecordedCall, backend: Callable[..., Any], device: torch.device, train: bool) -> None:
    """Compile and call once."""
    torch._dynamo.reset()
    function = call.function
    if device.type != "cpu":
        function = function.to(device) if isinstance(function, torch.nn.Module) else function
    inputs, keywords = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), (call.inputs, dict(call.keywords)))
    compiled = torch.compile(function, backend=backend)
    with torch.set_grad_enabled(train):
        out = compiled(*inputs, **keywords)
        if train:
            _backward(out)


def _backward(out: Any) -> None:
    found = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not found:
        raise InputError("nothing can be trained", why="no result has a gradient.", hint="Leave --train out.")
    torch.autograd.backward([t.sum() for t in found])


def call_of(text: str, shapes: Sequence[str]) -> RecordedCall:
    """The call given by MODULE:NAME and --shape. Raises InputError, which says what is missing."""
    given = tuple(_random(shape) for shape in shapes)
    found = _find(text)
    if isinstance(found, torch.nn.Module) or hasattr(found, "example_inputs") or not callable(found):
        return _with_inputs(text, found, given)
    required = _required(found)
    if required:
        if given:
            return RecordedCall(found, given)
        raise InputError(
            f"there are no inputs for {text}",
            why=f"it takes {', '.join(required)}.",
            hint="Give --shape 8x128 for each of them, or an attribute example_inputs with a tuple.",
        )
    made = found()
    if isinstance(made, tuple) and made and callable(made[0]) and len(made) in (2, 3):
        if given:
            raise InputError(f"{text} returns its own inputs", hint="Leave --shape out.")
        return RecordedCall(made[0], _tuple(text, made[1]), made[2] if len(made) == 3 else {})
    if not callable(made):
        raise InputError(
            f"{text} returns {type(made).__name__}, which cannot be tuned",
            why="it must return a model, (model, inputs) or (model, inputs, keywords).",
        )
    return _with_inputs(text, made, given)


def _with_inputs(text: str, model: Any, given: tuple[Any, ...]) -> RecordedCall:
    if not callable(model):
        raise InputError(f"{text} is {type(model).__name__}, which cannot be called")
    examples = getattr(model, "example_inputs", None)
    if given:
        return RecordedCall(model, given)
    if examples is None:
        raise InputError(
            f"there are no inputs for {text}",
            hint="Give --shape 1x3x224x224 for each of them, or an attribute example_inputs with a tuple.",
        )
    return RecordedCall(model, _tuple(text, examples() if callable(examples) else examples))


def _tuple(text: str, inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    raise InputError(f"the inputs of {text} are {type(inputs).__name__}", why="they must be a tuple.")


def _find(text: str) -> Any:
    """The object named by MODULE:NAME."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise InputError(f"{text!r} names nothing", hint="taskmap tune package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as for `python -m`
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"cannot import {module!r}", why=f"{error}.") from error
    except Exception as error:
        raise InputError(f"cannot import {module!r}", why=f"{type(error).__name__}: {error}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise InputError(f"{module} has no {name}", why=f"{error}.") from error
    return found


def _required(function: Callable[..., Any]) -> list[str]:
    """The required parameters of a call."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ["tensors"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind in kinds]


def _random(text: str) -> torch.Tensor:
    """A tensor of the sizes in ``text``: normal numbers, or integers 0 and 1."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not a shape", hint="--shape 1x3x224x224, or 8x128:i64, or scalar:f64")
    shape = [] if found[1] == "scalar" else [int(n) for n in found[1].split("x")]
    count = 1
    for n in shape:
        count *= n
    if count > _LARGEST:
        raise InputError(f"a tensor of {text} is too large", why=f"it has more than {_LARGEST:g} elements.")
    dtype = torch_dtype(dtype_named(found[2] or "f32"))
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 2, shape).to(dtype)
