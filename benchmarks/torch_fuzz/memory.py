"""Steps that read by index, and steps that write into memory: values and views of them, inputs included."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.torch_fuzz.operators import SCALARS, on, op
from benchmarks.torch_fuzz.scope import NoChoiceError, Scope, any_, exactly, full, number, ranked, real


def indices(s: Scope, x: str, axis: int, count: str) -> str:
    """Whole numbers below the size of an axis, some of them negative in subscripts."""
    return f"(torch.arange({count}, {on(x)}) * {s.one_of(1, 2, 3)} + {s.one_of(0, 1)}) % {s.size(x, axis)}"


def made(s: Scope, x: str, axis: int) -> str:
    """Indices from a value of the program if one is suitable: data unknown to compilers."""
    try:
        data = s.pick(exactly(1, lambda t: not t.dtype.is_floating_point and t.dtype != torch.bool and t.numel() > 0))
        return f"({data}.long() % {s.size(x, axis)})"
    except NoChoiceError:
        return indices(s, x, axis, s.one_of("2", "3", "5"))


def _subscript(s: Scope, x: str) -> str:
    rank = s.tensor(x).dim()
    first = made(s, x, 0)
    if rank == 1:
        return str(s.one_of(first, f"{first}[:, None]"))
    return s.one_of(
        first, f":, {made(s, x, 1)}", f"{first}, 0", f"{first}[:, None], {indices(s, x, 1, '2')}", f"{first}, 1:"
    )


def _gather(s: Scope, x: str) -> str:
    axis = s.axis(x)
    return f"{x}.gather({axis}, ({x}.isnan().long() + {s.one_of(0, 1, 3)}) % {s.size(x, axis)})"


def _scatter(s: Scope, x: str) -> str:
    """Write to distinct places, so that the order of writes does not matter."""
    axis = s.axis(x)
    place = f"torch.zeros_like({x}, dtype=torch.long).narrow({axis}, 0, 1) + {s.one_of(0, 1)} % {s.size(x, axis)}"
    return f"{x}.scatter({axis}, {place}, {s.one_of(0, 1, 2)})"


def _scatter_add(s: Scope, x: str) -> str:
    axis = s.axis(x)
    place = f"torch.arange({s.size(x, axis)}, {on(x)}) % {s.one_of(1, 2, 3)} % {s.size(x, axis)}"
    return f"torch.zeros_like({x}).index_add({axis}, {place}, {x})"


def _index_put(s: Scope, x: str) -> str:
    return f"{x}.index_put(({indices(s, x, 0, '1')},), {x}[-1:], accumulate={s.one_of(True, False)})"


INDEXING = [
    op(full(1), lambda s, x: f"{x}[{_subscript(s, x)}]"),
    op(full(1), lambda s, x: f"{x}[{_subscript(s, x)}]"),
    op(full(1), _gather),
    op(full(1), _scatter),
    op(full(1, number), _scatter_add),
    op(full(1), _index_put),
    op(full(1), lambda s, x: _index_select(s, x)),
    op(full(1), lambda s, x: f"{x}.take({indices(s, x, 0, '3')})"),
    op(full(1), lambda s, x: f"torch.take_along_dim({x}, {x}.argsort({_last(x)}, stable=True), {_last(x)})"),
    op(exactly(2, lambda t: real(t) and t.numel() > 0), lambda s, x: f"F.embedding({made(s, x, 0)}, {x})"),
    op(full(1), lambda s, x: f"{x}.index_fill({s.axis(x)}, torch.tensor([0], {on(x)}), {s.one_of(0, 1)})"),
    op(full(1), lambda s, x: f"{x}.slice_scatter({x}[:1] * 2, 0, 0, 1)"),
    op(full(1), lambda s, x: f"{x}.select_scatter({x}.select(0, 0), 0, -1)"),
    op(exactly(2), lambda s, x: f"{x}.diagonal_scatter({x}.diagonal() * 2)"),
    op(ranked(1), lambda s, x: f"{x}[{x}.isnan().logical_not()].sum()"),
    op(full(1, number), lambda s, x: f"F.one_hot({made(s, x, 0)}, {s.size(x, 0)})"),
    op(
        full(1, number),
        lambda s, x: f"torch.searchsorted({x}.flatten().sort()[0], {x})",
    ),
]


def _last(x: str) -> str:
    return "-1"


def _index_select(s: Scope, x: str) -> str:
    axis = s.axis(x)
    return f"{x}.index_select({axis}, {made(s, x, axis)})"


def writable(t: Tensor) -> bool:
    """Each element has a place of its own, and autograd allows the write."""
    if t.requires_grad and t.is_leaf:
        return False
    if t.numel() < 2:
        return True
    last = sum((n - 1) * k for n, k in zip(t.shape, t.stride(), strict=True))
    places = torch.arange(last + 1).as_strided(t.shape, t.stride(), 0)
    return len(set(places.flatten().tolist())) == t.numel()


def _writable_float(t: Tensor) -> bool:
    return real(t) and writable(t)


def _writable_number(t: Tensor) -> bool:
    return number(t) and writable(t)


def _part(s: Scope, x: str) -> str:
    """A view of ``x`` to write into."""
    rank = s.tensor(x).dim()
    if rank == 0:
        return x
    choices = [
        f"{x}[1:]",
        f"{x}[::2]",
        f"{x}[..., :-1]",
        f"{x}[0]",
        f"{x}.select({s.axis(x)}, -1)",
        f"{x}.narrow(0, 0, 1)",
    ]
    choices += [f"{x}.t()", f"{x}.diagonal()", f"{x}[:, 1]", f"{x}[1:, ::2]"] if rank == 2 else []
    choices += [f"{x}.transpose(0, -1)", f"{x}.flatten()", f"{x}.unsqueeze(0)"]
    return str(s.random.choice(choices))


def _scatter_in_place(s: Scope, x: str) -> str:
    return f"{x}.scatter_({s.one_of(0, -1)}, torch.zeros_like({x}, dtype=torch.long), 1)"


def _one(s: Scope) -> str:
    return str(s.one_of("0", "-1", "...", ":", "1:", "::2"))


INPLACE = [
    op(_writable_float, lambda s, x: f"{x}.{s.one_of('exp', 'sigmoid', 'tanh', 'relu', 'sin', 'neg')}_()", 0),
    op(_writable_number, lambda s, x: f"{x}.{s.one_of('add_', 'mul_', 'sub_')}({s.one_of(2, -1, 3)})", 0),
    op(_writable_float, lambda s, x: f"{x}.{s.one_of('add_', 'mul_', 'div_')}({s.one_of(0.5, 2, 3)})", 0),
    op(_writable_number, lambda s, x: f"{x}.{s.one_of('add_', 'mul_', 'sub_')}({s.beside(x, number)})", 0),
    op(_writable_number, lambda s, x: f"{x}.clamp_({s.one_of('-1, 1', 'min=0')})", 0),
    op(writable, lambda s, x: f"{x}.copy_({s.beside(x)})", 0),
    op(writable, lambda s, x: f"{x}.{s.one_of('zero_()', 'fill_(1)', 'fill_(0)')}", 0),
    op(writable, lambda s, x: f"{x}.masked_fill_({s.beside(x, number)} > 0, {s.one_of(0, 1)})", 0),
    op(_writable_number, lambda s, x: f"{_part(s, x)}.{s.one_of('add_', 'mul_', 'fill_')}({s.one_of(2, 3)})", 0),
    op(_writable_number, lambda s, x: f"{_part(s, x)}.{s.one_of('neg_', 'zero_', 'abs_', 'square_')}()", 0),
    op(_writable_number, lambda s, x: f"{_part(s, x)}.copy_({_part(s, s.beside(x))})", 0),
    op(full(1, _writable_number), lambda s, x: f"{x}[{_subscript(s, x)}] = {s.one_of(*SCALARS[:2])}", 0),
    op(full(1, _writable_number), lambda s, x: f"{x}[{_one(s)}] += {s.one_of(1, 2)}", 0),
    op(full(1, _writable_number), lambda s, x: f"{x}[{x} > 0] = {s.one_of(0, 2)}", 0),
    op(full(1, _writable_number), lambda s, x: f"{x}.index_add_(0, {indices(s, x, 0, s.size(x, 0))}, {x}.clone())", 0),
    op(full(1, _writable_number), lambda s, x: f"{x}.index_fill_(0, torch.tensor([0], {on(x)}), 3)", 0),
    op(
        full(1, writable),
        lambda s, x: f"{x}.scatter_({s.one_of(0, -1)}, torch.zeros_like({x}, dtype=torch.long), 1)",
        0,
    ),
    op(full(1, _writable_number), lambda s, x: f"{x}.cumsum_({s.axis(x)})", 0),
    op(ranked(2, writable), lambda s, x: f"{x}.t_()" if s.tensor(x).dim() == 2 else f"{x}.transpose_(0, 1)", 0),
    op(writable, lambda s, x: f"{x}.{s.one_of('unsqueeze_(0)', 'squeeze_()')}", 0),
    op(_writable_float, lambda s, x: f"{x}.addcmul_({s.beside(x, real)}.to({x}.dtype), {x})", 0),
    op(_writable_float, lambda s, x: f"F.relu({x}, inplace=True)", 1),
    op(any_, lambda s, x: f"torch.add({x}, 1).mul_(2)", 1),
]
