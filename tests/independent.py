"""Programs at several symbolic sizes that vary independently: forward and backward equal eager's at every size.

Sizes of a program that may vary are found by trying them in eager: an extent of one tensor alone, else that
extent everywhere. Then two, three and four of them are made symbolic, and take every permutation of small
primes. One compilation serves them all, so that confusing two sizes is detected.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from taskmap.torch_backend import compile_fx

Place = tuple[int, int]
"""A tensor's position among those of the arguments, and one of its dimensions."""
Group = tuple[Place, ...]
"""Dimensions that have one size."""
FEWEST, MOST = 2, 4
PRIMES = ((2, 3, 5, 7), (5, 7, 11, 13))
"""Small ones, and those to take where a program needs more."""
LARGEST = 30_000
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 8e-2, torch.float16: 2e-2}
"""Coarse: a size in the place of another one changes a result by far more."""
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)


@dataclass(frozen=True, slots=True)
class Program:
    """``function`` on ``args`` and ``kwargs``, all of whose tensors are inputs."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: Any

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs."""
        return [v for v in self.leaves if isinstance(v, Tensor)]

    def __call__(self, *given: Tensor) -> list[Any]:
        rest = iter(given)
        filled = [next(rest) if isinstance(v, Tensor) else v for v in self.leaves]
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        return list(pytree.tree_leaves(self.function(*args, **kwargs)))


def program(function: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Program:
    """A program of a function and its arguments."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    return Program(function, tuple(leaves), spec)


def free_sizes(given: Program) -> list[Group]:
    """The groups of dimensions that may vary together, each independently of the others."""
    places = [(i, d) for i, t in enumerate(given.tensors) for d, n in enumerate(t.shape) if n > 1]
    alone = [((i, d),) for i, d in places if _runs(given, {(i, d): 11})]
    taken = {place for group in alone for place in group}
    groups: list[Group] = list(alone)
    for extent in dict.fromkeys(given.tensors[i].shape[d] for i, d in places):
        same = tuple(p for p in places if p not in taken and given.tensors[p[0]].shape[p[1]] == extent)
        if len(same) > 1 and _runs(given, dict.fromkeys(same, 11)):
            groups.append(same)
    return groups


def check_independent(given: Program, every: bool = True) -> int:
    """Compare with eager at two, three and four independent sizes (not ``every``: only at the largest number);
    returns it.

    0: fewer than two sizes of the program are free. Raises AssertionError if a result or a gradient differs.
    """
    groups = free_sizes(given) if _fits(given.tensors) else []
    most = min(MOST, len(groups))
    counts = range(FEWEST, most + 1) if every else range(max(most, FEWEST), most + 1)
    return max((count for count in counts if _check(given, groups[:count])), default=0)


_noted: list[Program] | None = None


def note(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> None:
    """Run the program of the current test at independent sizes, too, after the test, if requested."""
    if _noted is not None:
        _noted.append(program(function, copy.deepcopy(tuple(args)), kwargs))


@contextmanager
def noting() -> Iterator[list[Program]]:
    """The programs noted within the block."""
    global _noted
    _noted = []
    try:
        yield _noted
    finally:
        _noted = None


def _check(given: Program, groups: Sequence[Group]) -> bool:
    for primes in PRIMES:
        wanted = [(at, found) for at in _sizes(groups, primes) if (found := _eager(given, at)) is not None]
        if len(wanted) > 1:
            break
    else:
        return False
    torch._dynamo.reset()
    run = torch.compile(given, backend=compile_fx)
    for at, (values, gradients) in wanted:
        inputs = _marked(_resized(given, at), at, bool(gradients))
        try:
            mine = run(*inputs)
        except Exception as error:
            if not is_pytorchs_own(error, given, at, bool(gradients)):
                raise
            run = torch.compile(given, backend=compile_fx)
            continue
        assert_close(mine, values, at)
        if gradients:
            assert_close(_gradients(mine, inputs), gradients, at)
    return True


def is_pytorchs_own(error: Exception, given: Program, at: dict[Place, int], trained: bool) -> bool:
    """True if PyTorch fails alike without taskmap: it divides by a size's distance from a correction of two."""
    torch._dynamo.reset()
    inputs = _marked(_resized(given, at), at, trained)
    try:
        torch.compile(given, backend="aot_eager")(*inputs)
    except Exception as other:
        return str(error).splitlines()[1:2] == str(other).splitlines()[1:2]
    finally:
        torch._dynamo.reset()
    return False


def assert_close(mine: Sequence[Any], theirs: Sequence[Any], at: object) -> None:
    """Check for the same types, shapes and numbers; floats within the precision of their type, relative to the
    largest."""
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if not isinstance(b, Tensor):
            assert a == b, f"{a} for {b} at {at}"
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{a.dtype}{a.shape} for {b.dtype}{b.shape} at {at}"
        if not b.numel() or not b.dtype.is_floating_point:
            assert torch.equal(a, b), f"at {at}"
            continue
        error = TOLERANCE[b.dtype]
        scale = float(b.detach().double().nan_to_num(0, 0, 0).abs().max())
        torch.testing.assert_close(a, b, rtol=error, atol=error * scale, equal_nan=True, msg=lambda m: f"{m} at {at}")


def _sizes(groups: Sequence[Group], primes: Sequence[int]) -> Iterator[dict[Place, int]]:
    for order in itertools.permutations(primes[: len(groups)]):
        yield {place: n for group, n in zip(groups, order, strict=True) for place in group}


def _runs(given: Program, at: dict[Place, int]) -> bool:
    return _eager(given, at) is not None


def _eager(given: Program, at: dict[Place, int]) -> tuple[list[Any], list[Tensor]] | None:
    """The results at these sizes, and the gradients, if there are any; None if eager refuses the sizes."""
    # Eager's fused attention crashes for some lengths that the plain one takes (PyTorch 2.13.0, backward, on a CPU).
    with sdpa_kernel(SDPBackend.MATH):
        try:
            values = given(*_resized(given, at))
        except _REFUSALS:
            return None
        if not _fits([v for v in values if isinstance(v, Tensor)]):
            return None
        inputs = [_leaf(t) for t in _resized(given, at)]
        try:
            made = given(*inputs)
            return made, _gradients(made, inputs)
        except _REFUSALS:
            return values, []


def _gradients(results: Sequence[Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a weighted sum of the results, for the inputs that have one."""
    floats = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if not floats or not wanted:
        return []
    ups = [torch.linspace(0.5, 1.5, r.numel()).view(r.shape).to(r.dtype) for r in floats]
    return [g for g in torch.autograd.grad(floats, wanted, ups, allow_unused=True) if g is not None]


def _resized(given: Program, at: dict[Place, int]) -> list[Tensor]:
    """The inputs at other sizes: their elements repeated, with slightly different floats each time."""
    made: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)
    for i, t in enumerate(given.tensors):
        x = t.detach()
        for d in range(t.dim()):
            if (i, d) in at:
                x = x.index_select(d, torch.arange(at[i, d]) % x.shape[d])
        if x.dtype.is_floating_point and x is not t:
            x = (x * (1 + torch.rand(x.shape, generator=generator) / 8)).to(t.dtype)
        made.append(x.clone())
    return made


def _leaf(x: Tensor) -> Tensor:
    return x.requires_grad_(x.dtype.is_floating_point)


def _marked(inputs: list[Tensor], at: dict[Place, int], trained: bool) -> list[Tensor]:
    for i, d in at:
        torch._dynamo.maybe_mark_dynamic(inputs[i], d)
    return [_leaf(x) for x in inputs] if trained else inputs


def _fits(tensors: Sequence[Tensor]) -> bool:
    plain = all(t.layout == torch.strided and t.device.type == "cpu" for t in tensors)
    return plain and sum(t.numel() for t in tensors) < LARGEST
