"""Steps by functions that programs use less often: special functions, scatters, losses, other types' views."""

from __future__ import annotations

from benchmarks.torch_fuzz.memory import indices, made, writable
from benchmarks.torch_fuzz.operators import keep, on, op
from benchmarks.torch_fuzz.scope import Accepts, Scope, any_, exactly, full, integer, number, ranked, real, wide

SPECIAL = ("entr", "erfcx", "log_ndtr", "ndtri", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "ndtr", "expit", "exp2")
WRITTEN = ("nan_to_num_", "round_", "erf_", "sqrt_", "log1p_", "trunc_", "reciprocal_")
WRITTEN_WITH = ("copysign_", "fmod_", "pow_", "remainder_")


def images(*ranks: int) -> Accepts:
    """Floats of one of these ranks, with elements."""
    return lambda t: t.dim() in ranks and real(t) and t.numel() > 0


def writes(accepts: Accepts) -> Accepts:
    return lambda t: accepts(t) and writable(t)


def _ones(s: Scope, x: str, *shape: str) -> str:
    """Weights of the type of ``x``."""
    return f"torch.ones({', '.join(shape)}, dtype={x}.dtype, {on(x)})"


def _zeros(x: str) -> str:
    """Indices of the shape of ``x``."""
    return f"torch.zeros_like({x}, dtype=torch.long)"


def _reduced(s: Scope, x: str, *kinds: str) -> str:
    return f"{_zeros(x)}, {x}, {s.one_of(*kinds)!r}, include_self={s.one_of(True, False)}"


def _sampled(s: Scope, x: str) -> str:
    theta = f"torch.eye(2, 3, dtype={x}.dtype, {on(x)}).expand({x}.shape[0], 2, 3) * 0.9"
    how = f"mode={s.one_of('bilinear', 'nearest')!r}, padding_mode={s.one_of('zeros', 'border', 'reflection')!r}"
    grid = f"F.affine_grid({theta}, {x}.shape, align_corners=False)"
    return f"F.grid_sample({x}, {grid}, {how}, align_corners=False)"


def _repeated(s: Scope, x: str) -> str:
    counts = f"torch.tensor([1], {on(x)}).expand({s.size(x, 0)})"
    return f"torch.repeat_interleave({x}, {counts}, dim=0, output_size={s.size(x, 0)})"


def _likelihood(s: Scope, x: str) -> str:
    classes = f"torch.arange({s.size(x, 0)}, {on(x)}) % {s.size(x, 1)}"
    return (
        f"F.nll_loss({x}, {classes}, reduction={s.one_of('none', 'mean', 'sum')!r}, ignore_index={s.one_of(0, -100)})"
    )


POINTWISE = [
    *(op(real, lambda s, x, name=name: f"torch.special.{name}({x})") for name in SPECIAL),  # type: ignore[misc]
    op(real, lambda s, x: f"torch.{s.one_of('i0', 'sinc', 'deg2rad', 'rad2deg')}({x})"),
    op(any_, lambda s, x: f"torch.{s.one_of('isposinf', 'isneginf', 'isreal')}({x})"),
    op(real, lambda s, x: f"torch.polygamma({s.one_of(1, 2)}, {x}.abs() + 1)"),
    op(real, lambda s, x: f"torch.heaviside({x}, {s.beside(x, real)}.to({x}.dtype))"),
    op(real, lambda s, x: f"torch.ldexp({x}, {s.beside(x, integer)} % 8)"),
    op(real, lambda s, x: f"torch.logaddexp2({x}, {s.beside(x, real)})"),
    op(wide, lambda s, x: f"torch.frexp({x})", 2),
    op(real, lambda s, x: f"torch.special.xlog1py({x}, {s.beside(x, real)})"),
    op(integer, lambda s, x: f"torch.{s.one_of('gcd', 'lcm')}({x} % 50, {x}.abs() % 7 + 1)"),
    op(real, lambda s, x: f"F.threshold({x}, {s.one_of(0, 0.5)}, {s.one_of(1, 20)})"),
    op(ranked(2, real), lambda s, x: f"F.prelu({x}, {x}.new_full((1,), 0.25))"),
    op(real, lambda s, x: f"F.hardshrink({x}, {s.one_of(0.5, 1)})"),
    op(number, lambda s, x: f"torch.clamp({x}, {s.beside(x, number)}, {s.beside(x, number)})"),
    op(number, lambda s, x: f"torch.bucketize({x}, torch.arange(-2, 3, {on(x)}), right={s.one_of(True, False)})"),
    op(any_, lambda s, x: f"{x}.type_as({s.pick()})"),
    op(real, lambda s, x: f"torch.complex({x}.float(), {x}.float()).abs()"),
    op(real, lambda s, x: f"torch.view_as_real(torch.polar({x}.float().abs(), {x}.float()))"),
]

REDUCTIONS = [
    op(ranked(1, real), lambda s, x: f"F.softmax({x}, {s.axis(x)}, dtype=torch.{s.one_of('float32', 'float64')})"),
    op(full(1, real), lambda s, x: f"{x}.nanmean({s.axis(x)}{keep(s)})"),
    op(full(1, real), lambda s, x: f"{x}.nanmedian({s.axis(x)})[0]"),
    op(full(1, real), lambda s, x: f"torch.std_mean({x}, {s.axes(x)}{keep(s)}, correction=0)", 2),
    op(full(1, real), lambda s, x: f"{x}.quantile(0.5, {s.axis(x)})"),
    op(full(1, number), lambda s, x: f"{x}.cummin({s.axis(x)})", 2),
    op(full(1, number), lambda s, x: f"{x}.argsort({s.axis(x)}, stable=True, descending={s.one_of(True, False)})"),
    op(exactly(2, number), lambda s, x: f"torch.trace({x})"),
    op(exactly(2, real), lambda s, x: f"torch.tensordot({x}, {x}, dims=([{s.one_of(0, 1)}], [{s.one_of(0, 1)}]))"),
    op(exactly(2, real), lambda s, x: f"torch.inner({x}, {x})"),
    op(full(2, real), lambda s, x: f"torch.renorm({x}, {s.one_of(1, 2)}, {s.axis(x)}, 1.0)"),
    op(full(2, wide), lambda s, x: f"torch.linalg.matrix_norm({x}, {s.one_of(repr('fro'), 1, 'torch.inf')})"),
    op(full(1, real), lambda s, x: f"torch.trapezoid({x}, dim={s.axis(x)})"),
    op(full(1, real), lambda s, x: f"torch.cumulative_trapezoid({x}, dim={s.axis(x)})"),
    op(images(2), lambda s, x: f"torch.linalg.multi_dot([{x}, {x}.t(), {x}])"),
    op(images(2), lambda s, x: f"torch.einsum('ij,kj,kl->il', {x}, {x}, {x})"),
    op(images(2), lambda s, x: f"torch.addmv({x}[:, 0], {x}, {x}[0], beta={s.one_of(0.5, 0)})"),
    op(images(1), lambda s, x: f"torch.addr({x}[:, None], {x}, {x}, alpha={s.one_of(0.5, 2)})"),
    op(images(3), lambda s, x: f"torch.addbmm({x}[0, :, :1], {x}, {x}.mT)"),
    op(images(1, 2), lambda s, x: f"torch.cov({x})"),
    op(full(1, number), lambda s, x: f"torch.bincount({x}.flatten().long() % 5, minlength=5)"),
    op(ranked(1, real), lambda s, x: f"torch.linalg.vecdot({x}, {x}, dim={s.axis(x)})"),
]

MOVES = [
    op(lambda t: t.dim() == 2 and real(t) and t.numel() < 60, lambda s, x: f"torch.kron({x}, {x}[:1])"),
    op(exactly(2), lambda s, x: f"torch.block_diag({x}, {s.pick(exactly(2))})"),
    op(exactly(1), lambda s, x: f"torch.cartesian_prod({x}, {x}[:2])"),
    op(ranked(1), lambda s, x: f"torch.{s.one_of('hstack', 'vstack', 'dstack', 'column_stack')}([{x}, {x}])"),
    op(ranked(2), lambda s, x: f"torch.{s.one_of('fliplr', 'flipud')}({x})"),
    op(full(1), lambda s, x: f"{x}.index_copy(0, {indices(s, x, 0, '1')}, {x}[:1] * 2)"),
    op(full(1, number), lambda s, x: f"{x}.scatter_reduce(0, {_reduced(s, x, 'amax', 'amin', 'sum')})"),
    op(full(1, real), lambda s, x: f"{x}.scatter_reduce({s.axis(x)}, {_reduced(s, x, 'mean', 'prod')})"),
    op(full(1), lambda s, x: f"{x}.masked_scatter({x}.isnan().logical_not(), {x}.flip(0))"),
    op(full(1), lambda s, x: f"{x}.put(torch.tensor([0], {on(x)}), {x}.flatten()[-1:], accumulate=True)"),
    op(full(1), lambda s, x: f"torch.as_strided_scatter({x}.contiguous(), {x}.flatten()[:1], (1,), (1,), 0)"),
    op(full(1, number), lambda s, x: f"torch.diff({x}, n=2, dim={s.axis(x)})"),
    op(full(1), _repeated),
    op(lambda t: t.dtype.itemsize == 4, lambda s, x: f"{x}.contiguous().view(torch.int32).nan_to_num()"),
    op(lambda t: t.dim() > 0 and t.dtype.itemsize == 4, lambda s, x: f"{x}.contiguous().view(torch.uint8)"),
    op(ranked(1), lambda s, x: f"{x}.swapaxes(0, {s.axis(x)})"),
]

NETWORKS = [
    op(exactly(4, real), lambda s, x: f"F.unfold({x}, {s.one_of(1, 2)}, padding=1, stride={s.one_of(1, 2)})"),
    op(exactly(4, real), lambda s, x: f"F.fold(F.unfold({x}, 2, padding=1), {x}.shape[-2:], 2, padding=1)"),
    op(images(4), _sampled),
    op(images(2), lambda s, x: f"F.embedding_bag({made(s, x, 0)}, {x}, torch.tensor([0], {on(x)}), mode='mean')"),
    op(images(2), _likelihood),
    op(real, lambda s, x: f"F.gaussian_nll_loss({x}, {x}.detach() * 0.5, {x}.detach().abs() + 1)"),
    op(real, lambda s, x: f"F.soft_margin_loss({x}, {x}.detach().sign())"),
    op(real, lambda s, x: f"F.poisson_nll_loss({x}, {x}.detach().abs(), full={s.one_of(True, False)})"),
    op(exactly(2, real), lambda s, x: f"F.triplet_margin_loss({x}, {x}.detach() * 0.5, {x}.detach().flip(0))"),
    op(exactly(2, real), lambda s, x: f"F.pairwise_distance({x}, {x}.flip(0))"),
    op(images(3), lambda s, x: f"F.max_pool1d({x}, 2, stride=1, padding=1, return_indices=True)", 2),
    op(images(4), lambda s, x: f"F.max_pool2d({x}, 2, stride=1, padding=1, return_indices=True)", 2),
    op(images(4), lambda s, x: f"F.interpolate({x}, size=(4, 3), mode={s.one_of('bicubic', 'area')!r})"),
    op(images(4), lambda s, x: f"F.interpolate({x}, size=(4, 3), mode='bilinear', antialias=True)"),
    op(images(3), lambda s, x: f"F.conv1d({x}, {_ones(s, x, '2', s.size(x, 1), '3')}, padding='same')"),
    op(images(4), lambda s, x: f"F.conv3d({x}.unsqueeze(1), {_ones(s, x, '2', '1', '2', '1', '2')}, padding=1)"),
    op(images(2), lambda s, x: f"F.bilinear({x}, {x}, {_ones(s, x, '3', s.size(x, 1), s.size(x, 1))})"),
]

WRITES = [
    op(writes(full(1, real)), lambda s, x: f"{x}.index_copy_(0, {indices(s, x, 0, '1')}, {x}[-1:].clone())", 0),
    op(writes(full(1, number)), lambda s, x: f"{x}.scatter_reduce_(0, {_zeros(x)}, {x}.clone(), 'amax')", 0),
    op(writes(full(1, number)), lambda s, x: f"{x}.put_(torch.tensor([0], {on(x)}), {x}.flatten()[-1:].clone())", 0),
    op(writes(real), lambda s, x: f"{x}.{s.one_of(*WRITTEN_WITH)}({s.beside(x, real)}.to({x}.dtype).detach())", 0),
    op(writes(real), lambda s, x: f"{x}.{s.one_of(*WRITTEN)}()", 0),
    op(writes(any_), lambda s, x: f"{x}.fill_({x}.sum())", 0),
    op(writes(exactly(2)), lambda s, x: f"{x}.{s.one_of('tril_', 'triu_')}()", 0),
    op(writes(exactly(2)), lambda s, x: f"{x}.fill_diagonal_({s.one_of(0, 1)})", 0),
    op(writes(full(1)), lambda s, x: f"{x}.masked_scatter_({x}.isnan().logical_not(), {x}.flip(0))", 0),
    op(writes(full(2)), lambda s, x: f"{x}[{indices(s, x, 0, '1')}, 1:] = {x}[:1, 1:].clone()", 0),
]

RARE = [*POINTWISE, *REDUCTIONS, *MOVES, *NETWORKS, *WRITES]
