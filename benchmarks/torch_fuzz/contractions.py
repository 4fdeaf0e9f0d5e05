"""Steps that multiply and add: matrix products, convolutions, pooling, normalisation, attention, losses."""

from __future__ import annotations

from benchmarks.torch_fuzz.operators import on, op
from benchmarks.torch_fuzz.scope import Scope, any_, exactly, full, number, ranked, real


def _weight(s: Scope, x: str, *shape: str) -> str:
    """A deterministic factor of the type of ``x``."""
    sizes = ", ".join(shape)
    count = " * ".join(shape)
    return f"torch.arange({count}, dtype={x}.dtype, {on(x)}).mul(0.7).sin().reshape({sizes})"


def _matrices(s: Scope, x: str) -> str:
    return s.one_of(
        f"{x} @ {x}.mT", f"{x}.mT @ {x}", f"torch.matmul({x}, {x}[..., 0, :])", f"{x} @ {x}.mT.contiguous()"
    )


def _two(s: Scope, x: str) -> str:
    """A product with another matrix that fits."""
    t = s.tensor(x)
    other = s.pick(exactly(2, lambda u: u.dtype == t.dtype and t.shape[1] in u.shape))
    u = s.tensor(other)
    return f"{x} @ {other}" if u.shape[0] == t.shape[1] else f"{x} @ {other}.t()"


def _conv(s: Scope, x: str) -> str:
    rank = s.tensor(x).dim() - 2
    kernel = [str(s.one_of(1, 2, 3))] * rank
    channels = s.size(x, 1)
    more = f"stride={s.one_of(1, 2)}, padding={s.one_of(0, 1, 2)}, dilation={s.one_of(1, 1, 2)}"
    if s.random.random() < 0.25:
        return f"F.conv{rank}d({x}, {_weight(s, x, channels, '1', *kernel)}, {more}, groups={channels})"
    if s.random.random() < 0.25:
        weight = _weight(s, x, channels, s.one_of("2", "3"), *kernel)
        return f"F.conv_transpose{rank}d({x}, {weight}, stride={s.one_of(1, 2)}, padding={s.one_of(0, 1)})"
    bias = s.one_of("", f", {_weight(s, x, '4')}")
    return f"F.conv{rank}d({x}, {_weight(s, x, '4', channels, *kernel)}{bias}, {more})"


def _pool(s: Scope, x: str) -> str:
    rank = s.tensor(x).dim() - 2
    more = f"{s.one_of(2, 3)}, stride={s.one_of(1, 2)}, padding={s.one_of(0, 1)}, ceil_mode={s.one_of(True, False)}"
    return str(
        s.one_of(
            f"F.max_pool{rank}d({x}, {more})",
            f"F.avg_pool{rank}d({x}, {more})",
            f"F.adaptive_avg_pool{rank}d({x}, {s.one_of(1, 2, 3)})",
            f"F.adaptive_max_pool{rank}d({x}, {s.one_of(1, 2)})",
        )
    )


def _resize(s: Scope, x: str) -> str:
    rank = s.tensor(x).dim() - 2
    mode = s.random.choice(["nearest", {1: "linear", 2: "bilinear"}.get(rank, "nearest-exact")])
    how = s.one_of("scale_factor=2", "scale_factor=1.5", "size=5", "size=3")
    more = f", align_corners={s.one_of(True, False)}" if mode.endswith("linear") else ""
    return f"F.interpolate({x}, {how}, mode={mode!r}{more})"


def _attention(s: Scope, x: str) -> str:
    ones = f"torch.ones({x}.shape[-2], {x}.shape[-2], dtype=torch.bool, {on(x)})"
    mask = s.one_of("", ", is_causal=True", f", attn_mask={ones}.tril()")
    if s.random.random() < 0.3:
        return f"F.scaled_dot_product_attention({x}, {x} * 0.5, {x}.flip(-1){mask})"
    finite = f"{x}.nan_to_num(0, 1, -1).clamp(-9, 9)"
    return f"F.scaled_dot_product_attention({finite}, {finite} * 0.5, {x}.flip(-1).clamp(-9, 9){mask})"


CONTRACTIONS = [
    op(ranked(2, number), _matrices),
    op(ranked(2, real), _matrices),
    op(exactly(2, number), _two),
    op(exactly(2, real), _two),
    op(ranked(1, real), lambda s, x: f"F.linear({x}, {_weight(s, x, '4', s.size(x, -1))})"),
    op(ranked(1, real), lambda s, x: f"F.linear({x}, {_weight(s, x, '3', s.size(x, -1))}, {_weight(s, x, '3')})"),
    op(exactly(3, real), lambda s, x: f"torch.bmm({x}, {x}.transpose(1, 2))"),
    op(exactly(3, real), lambda s, x: f"torch.baddbmm({x}[:, :, :1], {x}, {x}.mT, beta={s.one_of(0.5, 1)}, alpha=2)"),
    op(exactly(2, real), lambda s, x: f"torch.addmm({x}[:, :1], {x}, {x}.t(), alpha={s.one_of(1, 0.5)})"),
    op(exactly(2, real), lambda s, x: f"torch.mv({x}, {x}[0])"),
    op(exactly(1, number), lambda s, x: f"torch.dot({x}, {x})"),
    op(
        exactly(2, real),
        lambda s, x: f"torch.einsum({s.one_of('ij,kj->ik', 'ij,ij->i', 'ij,ik->jk', 'ij->ji')!r}, {x}, {x})",
    ),
    op(exactly(3, real), lambda s, x: f"torch.einsum({s.one_of('bij,bkj->bik', 'bij,bij->bj')!r}, {x}, {x})"),
    op(exactly(2, real), lambda s, x: f"torch.cdist({x}, {x} + 1)"),
    op(exactly(3, real), _conv),
    op(exactly(4, real), _conv),
    op(exactly(4, real), _conv),
    op(exactly(3, real), _pool),
    op(exactly(4, real), _pool),
    op(exactly(4, real), _pool),
    op(exactly(3, real), _resize),
    op(exactly(4, real), _resize),
    op(exactly(2, real), lambda s, x: f"{x}.unsqueeze(0).unsqueeze(1)"),
    op(exactly(3, real), _attention),
    op(exactly(4, real), _attention),
]

NORMS = [
    op(full(1, real), lambda s, x: f"F.layer_norm({x}, {x}.shape[-1:])"),
    op(full(1, real), lambda s, x: f"F.layer_norm({x}, {x}.shape[-1:], {_weight(s, x, s.size(x, -1))})"),
    op(full(1, real), lambda s, x: f"F.rms_norm({x}, ({s.size(x, -1)},))"),
    op(full(3, real), lambda s, x: f"F.group_norm({x}, {s.one_of(1, s.tensor(x).shape[1])})"),
    op(full(3, real), lambda s, x: f"F.instance_norm({x})"),
    op(full(2, real), lambda s, x: f"F.batch_norm({x}, None, None, training=True)"),
    op(full(3, real), lambda s, x: f"F.local_response_norm({x}, 2)"),
    op(
        real,
        lambda s, x: f"F.{s.one_of('mse_loss', 'l1_loss', 'smooth_l1_loss', 'huber_loss')}({x}, {x}.detach() * 0.5)",
    ),
    op(real, lambda s, x: f"F.binary_cross_entropy_with_logits({x}, {x}.detach().sigmoid())"),
    op(exactly(2, lambda t: real(t) and t.numel() > 0), lambda s, x: f"F.cross_entropy({x}, {_classes(s, x)})"),
    op(full(1, real), lambda s, x: f"F.kl_div({x}, {x}.softmax(-1), reduction='batchmean')"),
    op(full(2, real), lambda s, x: f"F.cosine_similarity({x}, {x}.flip(0), dim={s.axis(x)})"),
    op(full(2, real), lambda s, x: f"F.glu({x}, {s.axis(x)})"),
    op(any_, lambda s, x: f"torch.cat([{x}.flatten(), {s.pick()}.flatten()])"),
]


def _classes(s: Scope, x: str) -> str:
    more = s.one_of("", ", label_smoothing=0.1", ", reduction='sum'", ", reduction='none'")
    return f"torch.arange({s.size(x, 0)}, {on(x)}) % {s.size(x, 1)}{more}"
