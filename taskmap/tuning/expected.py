"""Reference results of tunable operators, by numpy in float64, with an error bound for every element.

Operands are uniform in [-1, 1): a sum of k products of such numbers is about sqrt(k) / 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from taskmap.ir.types import DType
from taskmap.schedules import Problem
from taskmap.schedules.common.matmul_form import MatmulForm
from taskmap.schedules.cpu.attention.problem import AttentionProblem
from taskmap.schedules.cpu.convolution.problem import ConvolutionProblem

Array = npt.NDArray[Any]
Expected = tuple[Array, float]
_DIGITS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def expected(problem: Problem, inputs: Sequence[Array]) -> Expected:
    """The output for the logical tensors ``inputs``, and the error bound of each element."""
    return _EXPECTED[problem.template](problem, inputs)


def _allowed(terms: int, accumulate: DType, stored: DType, out: Array) -> float:
    """The bound: far above the rounding errors of summing ``terms`` products and of storing the sums."""
    sums = _DIGITS[accumulate.name] * (4 + terms) * max(1.0, sqrt(terms) / 8)
    return sums + _DIGITS[stored.name] * float(np.abs(out).max(initial=1.0))


def _matmul(problem: Problem, inputs: Sequence[Array]) -> Expected:
    p = cast(MatmulForm, problem)
    a, b = inputs
    if p.packed is not None:
        b = b.transpose(1, 0, 2).reshape(p.k, -1)[None, :, : p.n]
    out = a @ b
    return out, _allowed(p.k, p.accumulate, p.types[2], out)


def _convolution(problem: Problem, inputs: Sequence[Array]) -> Expected:
    p = cast(ConvolutionProblem, problem)
    x, w = inputs[0], unpacked(p, inputs[1])
    out = (_transposed if p.transposed is not None else _direct)(p, x, w)
    terms = prod(p.w[2:]) * p.x[1] // p.groups
    return out, _allowed(terms, p.accumulate, p.types[2], out)


def unpacked(p: ConvolutionProblem, w: Array) -> Array:
    """Weights [oc, c / groups, kernel...] ([c, oc / groups, kernel...] transposed), from any layout."""
    if p.weights == "channels":
        alone: Array = np.moveaxis(w[0, 0], -1, 0)[:, None]
        return alone
    if p.packed is None:
        return w
    if p.transposed is not None or p.groups == 1:
        w = w[None]
    # [groups, panels, kernel..., inputs, width] to [groups, inputs, panels * width, kernel...]
    taps = range(2, 2 + p.rank)
    w = w.transpose(0, 2 + p.rank, 1, 3 + p.rank, *taps)
    w = w.reshape(w.shape[0], w.shape[1], -1, *w.shape[4:])[:, :, : p.out[1] // p.groups]
    laid: Array = w[0] if p.transposed is not None else w.swapaxes(1, 2).reshape(p.w)
    return laid


def _direct(p: ConvolutionProblem, x: Array, w: Array) -> Array:
    padded: Array = np.pad(x, [(0, 0), (0, 0), *((n, n) for n in p.padding)])
    per_group, of_group = p.x[1] // p.groups, p.out[1] // p.groups
    out: Array = np.zeros((p.x[0], p.groups, of_group, prod(p.out[2:])))
    for tap in itertools.product(*(range(k) for k in p.w[2:])):
        seen = padded[_under(p, tap, p.out)].reshape(p.x[0], p.groups, per_group, -1)
        out += w[_at(tap)].reshape(p.groups, of_group, per_group) @ seen
    return out.reshape(p.out)


def _transposed(p: ConvolutionProblem, x: Array, w: Array) -> Array:
    per_group, of_group = p.x[1] // p.groups, p.out[1] // p.groups
    image = x.reshape(p.x[0], p.groups, per_group, -1)
    room = [n + 2 * q + s for n, q, s in zip(p.out[2:], p.padding, p.stride, strict=True)]
    room = [
        max(r, (n - 1) * s + d * (k - 1) + 1)
        for r, n, s, d, k in zip(room, p.x[2:], p.stride, p.dilation, p.w[2:], strict=True)
    ]
    out: Array = np.zeros((p.x[0], p.out[1], *room))
    for tap in itertools.product(*(range(k) for k in p.w[2:])):
        weights = w[_at(tap)].reshape(p.groups, per_group, of_group).swapaxes(1, 2)
        out[_under(p, tap, p.x)] += (weights @ image).reshape(p.x[0], p.out[1], *p.x[2:])
    kept = (slice(None), slice(None), *(slice(q, q + n) for q, n in zip(p.padding, p.out[2:], strict=True)))
    return out[kept]


def _at(tap: tuple[int, ...]) -> tuple[slice | int, ...]:
    """One element of the kernel, for all channels."""
    return (slice(None), slice(None), *tap)


def _under(p: ConvolutionProblem, tap: tuple[int, ...], shape: Sequence[int]) -> tuple[slice, ...]:
    """The inputs that one element of the kernel multiplies, for output positions of ``shape``, in all channels."""
    window = zip(tap, p.dilation, shape[2:], p.stride, strict=True)
    return (slice(None), slice(None), *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in window))


def _attention(problem: Problem, inputs: Sequence[Array]) -> Expected:
    p = cast(AttentionProblem, problem)
    q, k, v, *masks = inputs
    out = np.zeros((p.batch, p.heads, p.queries, p.width))
    hidden = np.triu(np.ones((p.queries, p.keys), bool), 1) if p.causal else None
    shared = p.heads // p.key_heads
    for b, h in itertools.product(range(p.batch), range(p.heads)):
        scores = q[b, h] @ k[b, h // shared].T / sqrt(p.depth)
        for mask in masks:
            rows = np.broadcast_to(mask, (p.batch, p.heads, p.queries, p.keys))[b, h]
            scores = np.where(rows != 0, scores, -np.inf) if "bool" in p.mask else scores + rows
        if hidden is not None:
            scores = np.where(hidden, -np.inf, scores)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - np.where(np.isinf(top), 0.0, top))
        total = weights.sum(axis=1, keepdims=True)
        out[b, h] = weights / np.where(total == 0, 1.0, total) @ v[b, h // shared]
    # Scores have the errors of a sum over the depth, weights in proportion to them; a mean of values is below 1.
    scores_off = _DIGITS["f32"] * (4 + p.depth) * max(1.0, sqrt(p.depth) / 8)
    return out, 4 * scores_off + _DIGITS["f32"] * (16 + p.keys / 8) + 2 * _DIGITS[p.types[1].name]


_EXPECTED: dict[str, Callable[[Problem, Sequence[Array]], Expected]] = {
    "cpu.matmul": _matmul,
    "cpu.convolution": _convolution,
    "cpu.attention": _attention,
    "cuda.matmul": _matmul,
}
