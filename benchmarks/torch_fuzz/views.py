"""Steps that move elements: views, copies that may be views, and rearrangements."""

from __future__ import annotations

from benchmarks.torch_fuzz.operators import on, op
from benchmarks.torch_fuzz.scope import Scope, any_, exactly, full, number, ranked, real


def _slice(s: Scope, x: str) -> str:
    """One index for each of the leading axes: a slice with a step, a number, None or an ellipsis."""
    parts: list[str] = []
    for n in s.tensor(x).shape[: s.random.randint(1, 3)]:
        start, end = sorted((s.random.randint(-1, n + 1), s.random.randint(0, n + 1)))
        choices = [":", f"{start}:{end}", f"{start}:", f":{end}", f"::{s.one_of(1, 2, 3)}", f"{start}::2", ":-1"]
        choices += [str(s.random.randrange(-n, n))] if n else []
        parts.append(s.random.choice(choices))
        if s.random.random() < 0.1:
            parts.append("None")
    if s.random.random() < 0.2:
        parts = ["...", *parts]
    return f"{x}[{', '.join(parts)}]"


def _permute(s: Scope, x: str) -> str:
    axes = list(range(s.tensor(x).dim()))
    s.random.shuffle(axes)
    return f"{x}.permute({axes})"


def _split(s: Scope, x: str) -> str:
    """A reshape that makes two axes of one."""
    axis = s.random.randrange(s.tensor(x).dim())
    n = s.tensor(x).shape[axis]
    divisor = s.random.choice([d for d in (1, 2, 3, 5, 7) if n % d == 0])
    return f"{x}.unflatten({axis}, ({s.one_of(f'{divisor}, -1', f'-1, {divisor}')}))"


def _reshape(s: Scope, x: str) -> str:
    shape = list(s.tensor(x).shape)
    sizes = [s.size(x, k) for k in range(len(shape))]
    word = s.one_of("reshape", "reshape", "view")
    if len(shape) < 2 or s.random.random() < 0.2:
        return f"{x}.{word}(-1)"
    k = s.random.randrange(len(shape) - 1)
    merged = [*sizes[:k], f"{sizes[k]} * {sizes[k + 1]}", *sizes[k + 2 :]]
    if s.random.random() < 0.3 and all(shape):
        merged[s.random.randrange(len(merged))] = "-1"
    return f"{x}.{word}({', '.join(merged)})"


def _expand(s: Scope, x: str) -> str:
    shape = s.tensor(x).shape
    sizes = [s.one_of("2", "3", s.size(x, k)) if n == 1 else "-1" for k, n in enumerate(shape)]
    front = s.one_of([], ["2"], ["3", "1"])
    return f"{x}.expand({', '.join([*front, *sizes])})"


def _as_strided(s: Scope, x: str) -> str:
    """A legal view of a contiguous tensor's memory, that may overlap itself."""
    t = s.tensor(x)
    n, rank = t.numel(), s.random.randint(1, 3)
    for _ in range(8):
        shape = [s.random.randint(1, 4) for _ in range(rank)]
        strides = [s.random.randint(0, 5) for _ in range(rank)]
        last = sum((d - 1) * k for d, k in zip(shape, strides, strict=True))
        if last < n:
            return f"{x}.contiguous().as_strided({shape}, {strides})"
    return f"{x}.contiguous().as_strided([{n}], [1])"


def _narrow(s: Scope, x: str) -> str:
    axis = s.axis(x)
    n = s.tensor(x).shape[axis]
    start = s.random.randint(0, n)
    return f"{x}.narrow({axis}, {start}, {s.random.randint(0, n - start)})"


VIEWS = [
    op(ranked(1), _slice),
    op(ranked(1), _slice),
    op(ranked(1), _slice),
    op(ranked(1), _permute),
    op(ranked(1), _split),
    op(any_, _reshape),
    op(any_, _reshape),
    op(lambda t: t.numel() < 300, _expand),
    op(full(1), _as_strided),
    op(ranked(1), _narrow),
    op(exactly(2), lambda s, x: f"{x}.t()"),
    op(ranked(2), lambda s, x: f"{x}.transpose({s.axis(x)}, {s.axis(x)})"),
    op(ranked(2), lambda s, x: f"{x}.mT"),
    op(any_, lambda s, x: f"{x}.flatten()"),
    op(any_, lambda s, x: f"{x}.squeeze()"),
    op(ranked(1), lambda s, x: f"{x}.squeeze({s.axis(x)})"),
    op(any_, lambda s, x: f"{x}.unsqueeze({s.one_of(0, -1)})"),
    op(full(1), lambda s, x: f"{x}.select({s.axis(x)}, {s.one_of(0, -1)})"),
    op(ranked(2), lambda s, x: f"{x}.diagonal({s.one_of(0, 1, -1)})"),
    op(ranked(2), lambda s, x: f"{x}.diagonal(0, {s.one_of('0, 1', '-1, -2', '-2, -1')})"),
    op(full(1), lambda s, x: f"{x}.unfold({s.axis(x)}, {s.one_of(1, 2, 3)}, {s.one_of(1, 2)})"),
    op(ranked(1), lambda s, x: f"{x}.chunk({s.one_of(2, 3)}, {s.axis(x)})[{s.one_of(0, -1)}]"),
    op(ranked(1), lambda s, x: f"{x}.split({s.one_of(1, 2, 3)}, {s.axis(x)})[{s.one_of(0, -1)}]"),
    op(ranked(1), lambda s, x: f"{x}.tensor_split(2, {s.axis(x)})", 2),
    op(full(1), lambda s, x: f"{x}.unbind({s.axis(x)})[{s.one_of(0, -1)}]"),
    op(ranked(1), lambda s, x: f"{x}.movedim({s.axis(x)}, {s.one_of(0, -1)})"),
    op(any_, lambda s, x: f"{x}.view_as({x})"),
    op(any_, lambda s, x: f"{x}.detach()"),
    op(any_, lambda s, x: f"{x}.expand_as({s.beside(x)})"),
    op(any_, lambda s, x: f"torch.broadcast_tensors({x}, {s.beside(x)})", 2),
    op(any_, lambda s, x: f"{x}.to({x}.dtype)"),
    op(exactly(2), lambda s, x: f"{x}.contiguous()"),
    op(exactly(4), lambda s, x: f"{x}.contiguous(memory_format=torch.channels_last)"),
    op(ranked(1), lambda s, x: f"torch.atleast_2d({x})"),
]

REARRANGE = [
    op(ranked(1), lambda s, x: f"{x}.flip({s.axes(x)})"),
    op(ranked(1), lambda s, x: f"{x}.roll({s.one_of(1, -1, 2, 5)}, {s.axis(x)})"),
    op(any_, lambda s, x: f"{x}.roll(1)"),
    op(ranked(1), lambda s, x: f"torch.cat([{x}, {x} * 2], {s.axis(x)})"),
    op(ranked(1), lambda s, x: f"torch.cat([{_narrow(s, x)}, {x}], {s.axis(x)})"),
    op(any_, lambda s, x: f"torch.stack([{x}, {s.beside(x)}.expand_as({x})], {s.one_of(0, -1)})"),
    op(any_, lambda s, x: f"torch.stack([{x}, {s.beside(x)}.expand_as({x}).to({x}.dtype), {x}])"),
    op(ranked(2), lambda s, x: f"{x}.{s.one_of('tril', 'triu')}({s.one_of(0, 1, -1)})"),
    op(ranked(1), lambda s, x: f"{x}.repeat_interleave({s.one_of(2, 3)}, {s.axis(x)})"),
    op(exactly(2), lambda s, x: f"{x}.repeat({s.one_of('2, 1', '1, 3', '2, 1, 1', '0, 1')})"),
    op(exactly(2), lambda s, x: f"{x}.rot90({s.one_of(1, 2, 3)})"),
    op(exactly(1), lambda s, x: f"torch.diag_embed({x}{s.one_of('', ', 1')})"),
    op(ranked(1), lambda s, x: f"F.pad({x}, ({s.one_of(0, 1, 2)}, {s.one_of(0, 1, -1)}), value={s.one_of(0, 1)})"),
    op(ranked(2), lambda s, x: f"F.pad({x}, ({s.one_of(0, 1)}, 1, {s.one_of(1, -1)}, {s.one_of(0, 2)}))"),
    op(exactly(3, real), lambda s, x: f"F.pad({x}, (1, 1), mode={s.one_of('reflect', 'replicate', 'circular')!r})"),
    op(exactly(4), lambda s, x: f"F.pixel_unshuffle({x}, 1)"),
    op(exactly(4), lambda s, x: f"F.channel_shuffle({x}, {s.one_of(1, 2, 3)})"),
    op(full(1, number), lambda s, x: f"torch.diff({x}, dim={s.axis(x)})"),
    op(exactly(1), lambda s, x: f"torch.outer({x}, {s.pick(exactly(1))})"),
    op(ranked(1), lambda s, x: f"{x} + torch.arange({s.size(x, -1)}, {on(x)})"),
    op(exactly(2), lambda s, x: f"torch.eye({s.size(x, 0)}, {s.size(x, 1)}, {on(x)}) + {x}"),
    op(any_, lambda s, x: f"{x}.new_{s.one_of('zeros', 'ones')}({x}.shape)"),
    op(ranked(1), lambda s, x: f"torch.full(({s.size(x, 0)},), {s.one_of(2, 0.5)}, {on(x)})"),
    op(exactly(2), lambda s, x: f"torch.meshgrid({x}[0], {x}[:, 0], indexing='ij')", 2),
    op(exactly(1), lambda s, x: f"torch.vander({x}, 3)"),
]
