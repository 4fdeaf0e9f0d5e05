"""A temporary torch.compile whose Dynamo cache entries are removed on exit."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._dynamo.pgo import get_code_state
from torch.utils._pytree import tree_leaves

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@contextmanager
def private_compile(function: Callable[..., Any], backend: Backend) -> Iterator[Callable[..., Any]]:
    """Yields ``function`` compiled with ``backend``; on exit the compiled code is removed.

    Dynamo keeps its cache entries with the code objects of the compiled functions, shared by all compilations of them.
    If this compilation was the only one, its entries are removed. Otherwise they stay, but hold nothing, and other
    entries are untouched. Dynamo's record of sizes seen, by which it makes varying sizes symbolic, is set aside within
    the block.
    """
    thread = threading.get_ident()
    compiled: dict[CodeType, int] = {}
    graphs: list[_Graph] = []

    def note(code: CodeType, new_code: CodeType) -> CodeType | None:
        if threading.get_ident() == thread:
            compiled[code] = compiled.get(code, 0) + 1
        return None  # new_code stays

    @wraps(backend)
    def capture(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(_Graph(backend(gm, inputs)))
        return graphs[-1]

    hook = register_bytecode_hook(note)
    sizes = get_code_state()
    seen = dict(sizes)
    sizes.clear()
    try:
        yield torch.compile(function, backend=capture, **_APART)
    finally:
        sizes.clear()
        sizes.update(seen)
        hook.remove()
        for graph in graphs:
            graph.function = None
        for code, count in compiled.items():
            if _entries(code) <= count:
                eval_frame.reset_code(code)


class _Graph:
    """A compiled graph that can be released while Dynamo still refers to it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Callable[..., Any] | None = function

    def __call__(self, *args: Any) -> Any:
        assert self.function is not None, "a private compilation was called after its end"
        return self.function(*args)


def _entries(code: CodeType) -> int:
    """The number of compiled versions that Dynamo keeps of ``code``."""
    count = getattr(eval_frame, "_get_total_cache_entry_count", None)
    if count is not None:
        return int(count(code))
    return len(eval_frame._debug_get_cache_entry_list(code))


# Since PyTorch 2.13 a compilation can have its own entries, with its own limit on their number.
_APART: dict[str, Any] = {"isolate_recompiles": True} if hasattr(eval_frame, "_get_cache_entries_for_region") else {}


@contextmanager
def unchanged(function: Callable[..., Any], arguments: Any) -> Iterator[None]:
    """On exit, restores every tensor that ``function`` can reach to its value on entry: arguments, buffers, and tensors
    in enclosing variables. Restores the random state, too. Parameters are not examined.
    """
    tensors = [
        t for t in reachable(function, arguments) if t.layout == torch.strided and not isinstance(t, torch.nn.Parameter)
    ]
    before = [(t, t.detach().clone(), _version(t)) for t in tensors]
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for tensor, value, version in before:
            if version is None or tensor._version != version:
                tensor.detach().copy_(value)


def reachable(function: Callable[..., Any], arguments: Any) -> list[torch.Tensor]:
    """The tensors that a call may read or write, each once: arguments, parameters, buffers, and tensors in the
    function's variables.
    """
    found: dict[int, torch.Tensor] = {}
    for value in tree_leaves([arguments, function, *_variables(function)]):
        module = isinstance(value, torch.nn.Module)
        inside = [*value.parameters(), *value.buffers()] if module else [value]
        found.update((id(t), t) for t in inside if isinstance(t, torch.Tensor))
    return list(found.values())


def _variables(function: Callable[..., Any]) -> list[Any]:
    """The objects that a function refers to by name, and the object that a method is bound to."""
    plain = getattr(function, "__func__", function)
    owner = getattr(function, "__self__", None)
    if not inspect.isfunction(plain):
        return [owner]
    named = inspect.getclosurevars(plain)
    return [owner, *named.nonlocals.values(), *named.globals.values()]


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
