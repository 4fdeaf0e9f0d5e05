"""Values, dtypes, strides, aliasing and mutation equal eager's, beginning with cases that other compilers get
silently wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, check, compiled, since

X = torch.linspace(-3, 3, 24).reshape(4, 6)


@pytest.mark.parametrize("causal", [True, False])
def test_attention(causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 9, 16) for _ in range(3))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v, rtol=1e-5, atol=1e-5)


def test_attention_with_a_mask_of_bools() -> None:
    q, k, v = (torch.randn(1, 2, 7, 8) for _ in range(3))
    mask = torch.rand(7, 7) > 0.3
    mask[:, 0] = True
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, mask, rtol=1e-5, atol=1e-5)


def test_an_argument_changed_in_place() -> None:
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    check(f, X)


def test_a_write_through_a_view() -> None:
    def f(q: Tensor) -> Tensor:
        q = q * 1
        q[0].mul_(2)
        return q + 1

    check(f, X)


def test_a_write_into_a_part_of_an_argument() -> None:
    def f(x: Tensor) -> Tensor:
        x[0:2, 0] = 5
        return x.sum(0)

    check(f, X)


def test_a_write_through_a_view_of_an_argument_that_is_returned() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        view = x[1:, ::2]
        view.mul_(3)
        return view, x.t()

    check(f, X)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.int8, torch.int16])
def test_sums_of_small_integers_are_int64(dtype: torch.dtype) -> None:
    x = (X > 0).to(dtype)
    check(lambda x: (x.sum(), x.sum(0), x.prod(1)), x)
    assert compiled(lambda x: x.sum())(x).dtype == torch.int64


def test_infinities_and_nans_are_seen() -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0, -0.0])
    check(lambda x: (torch.isinf(x), torch.isnan(x), x.relu(), x.amax(), torch.maximum(x, x.flip(0)), 1 / x), x)


def test_autocast_region() -> None:
    layer = nn.Linear(6, 8)

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y: Tensor = layer(x)
            return y

    with torch.no_grad():
        got, want = compiled(f)(X), f(X)
    assert got.dtype == torch.bfloat16
    assert_like(got, want, rtol=2e-2, atol=2e-2)


def test_autocast_around_the_call() -> None:
    layer = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert_like(compiled(layer)(X), layer(X), rtol=4e-2, atol=4e-2)


def test_batch_norm_in_training_updates_its_statistics() -> None:
    check(lambda m, x: m(x), nn.BatchNorm1d(6).train(), torch.randn(5, 6), rtol=1e-4, atol=1e-5)
    mine, theirs = nn.BatchNorm2d(3).train(), nn.BatchNorm2d(3).train()
    x = torch.randn(4, 3, 5, 5)
    for _ in range(2):
        assert_like(compiled(mine)(x), theirs(x), rtol=1e-4, atol=1e-5)
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_in_training_drops_what_eager_drops() -> None:
    layer = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5)).train()
    run = compiled(layer)
    torch.manual_seed(7)
    got = run(X)
    torch.manual_seed(7)
    assert_like(got, layer(X), rtol=1e-5, atol=1e-6)
    assert (got == 0).any()


@pytest.mark.parametrize("rank", [(5, 6), (5, 6, 3)])
def test_batch_norm_1d(rank: tuple[int, ...]) -> None:
    layer = nn.BatchNorm1d(6).eval()
    with torch.no_grad():
        check(lambda x: layer(x), torch.randn(rank), rtol=1e-5, atol=1e-5)


def test_integer_division_and_remainder() -> None:
    a, b = torch.tensor([7, -7, 7, -7, 0]), torch.tensor([2, 2, -2, -2, 5])
    check(lambda a, b: (a // b, a % b, a / b, torch.div(a, b, rounding_mode="trunc")), a, b)


def test_reflection_padding_and_std() -> None:
    check(lambda x: (F.pad(x, (2, 1), mode="reflect"), x.std(), x.std(0, correction=0)), X, rtol=1e-5, atol=1e-6)


# Aliasing of results.


def test_an_intermediate_value_may_be_returned_too() -> None:
    check(lambda x: ((y := x.relu()), y + 1, y), X)


@pytest.mark.parametrize("what", ["detach", "t", "view", "select", "slice", "expand"])
def test_a_result_and_a_view_of_it_share_memory(what: str) -> None:
    views = {
        "detach": lambda y: y.detach(),
        "t": lambda y: y.t(),
        "view": lambda y: y.view(6, 4),
        "select": lambda y: y[1],
        "slice": lambda y: y[1:3, ::2],
        "expand": lambda y: y.unsqueeze(0).expand(3, 4, 6),
    }
    check(lambda x: ((y := x * 2), views[what](y)), X)
    check(lambda x: (views[what](y := x * 2), y), X)


def test_a_result_and_a_copy_of_it_do_not_share_memory() -> None:
    check(lambda x: ((y := x * 2), y.clone()), X)
    check(lambda x: (x.clone(), x), X)


def test_an_argument_and_views_of_it_returned() -> None:
    check(lambda x: (x, x.t(), x[0], x.view(-1), x.clone(), x.contiguous()), X)


def test_a_parameter_returned_and_a_value_computed_from_parameters_alone() -> None:
    weight = nn.Parameter(torch.randn(6, 6))

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return weight, (weight * 2).exp() @ weight, x @ weight

    with torch.no_grad():
        run = compiled(f)
        first, want = run(X), f(X)
        assert_like(first, want, rtol=1e-4, atol=1e-5)
        first[1].zero_()  # the caller's own: later calls must not see it
        assert_like(run(X), f(X), rtol=1e-4, atol=1e-5)


# Arguments of every form.


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(6, 8).t(),
        torch.randn(8, 12)[:, ::2],
        torch.randn(20, 10)[3:11, 2:8],
        torch.randn(6).expand(8, 6),
        torch.randn(48).as_strided((8, 6), (3, 2)),
        torch.randn(8, 6).flip(0),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(0, 6),
        torch.tensor(3.5),
        torch.randn(8, 6, dtype=torch.float64),
        torch.randn(8, 6).half(),
        torch.randn(8, 6).bfloat16(),
    ],
    ids=lambda x: f"{tuple(x.shape)}{x.stride()}{x.dtype}",
)
def test_inputs_of_every_layout(x: Tensor) -> None:
    check(lambda x: (x * 2 + 1, x.relu(), (x * x).sum()), x, rtol=1e-3, atol=1e-3)


def test_unaligned_input() -> None:
    check(lambda x: x * 2 + x.exp(), torch.randn(1001)[1:])


def test_the_same_tensor_twice_and_overlapping_tensors() -> None:
    base = torch.randn(30)
    check(lambda a, b: (a + b, a.mul_(2)), base, base)
    run = compiled(lambda a, b: (a.mul_(2) + b,))
    mine, theirs = base.clone(), base.clone()
    got = run(mine[:20], mine[10:])
    want = theirs[:20].mul_(2) + theirs[10:]
    torch.testing.assert_close(got[0], want)
    torch.testing.assert_close(mine, theirs)


def test_a_gradient_that_is_zero_without_memory() -> None:
    """Autograd passes such tensors: from sgn behind a graph break, for instance."""
    y, zero = torch.randn(3, requires_grad=True), torch.ops.aten._efficientzerotensor([3])
    compiled(lambda y: (y * 2).sin())(y).backward(zero)
    assert y.grad is not None
    assert not y.grad.any()
    assert not compiled(lambda y: y * 2)(zero).any()
    # The backward graph makes one itself.
    x = torch.tensor(0.2, requires_grad=True)
    compiled(lambda x: torch.sgn(torch.lerp(x, x.flip(0), 1)))(x).backward()
    assert x.grad is not None
    assert x.grad == 0


def test_a_negated_view() -> None:
    z = torch.randn(4, 5, dtype=torch.complex64)
    x = z.conj().imag
    assert x.is_neg()
    assert_like(compiled(lambda x: x * 2)(x), x * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 5, dtype=torch.complex64),
        lambda: torch.randn(4, 5).to_sparse(),
        lambda: torch.randn(4, 5).to_sparse_csr(),
        lambda: torch.randn(4, 5, device="meta"),
    ],
    ids=["complex", "sparse", "csr", "meta"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_that_taskmap_does_not_hold_run_through_pytorch(make) -> None:  # type: ignore[no-untyped-def]
    x = make()
    got, want = compiled(lambda x: x * 2)(x), x * 2
    assert (got.dtype, got.layout, got.shape, got.device) == (want.dtype, want.layout, want.shape, want.device)
    if x.device.type != "meta":
        torch.testing.assert_close(got, want)


def test_complex_numbers_on_the_way() -> None:
    before = metrics()
    check(lambda x: torch.fft.irfft(torch.fft.rfft(x * 2) * 1j).relu(), X, rtol=1e-4, atol=1e-5)
    assert since(before).externs > 0


def test_a_graph_without_computation() -> None:
    check(lambda x: (x, None, 3, x.t()), X)


def test_numbers_and_none_among_the_results() -> None:
    run = torch.compile(lambda x: (x + 1, x.shape[0] * 2, None), backend="eager", dynamic=True)
    got = compiled(lambda x: (x + 1, x.shape[0] * 2, None), dynamic=True)(X)
    assert_like(got, run(X))


def test_channels_last_results_keep_their_strides() -> None:
    layer = nn.Conv2d(3, 8, 3, padding=1)
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    with torch.no_grad():
        check(lambda x: (layer(x), layer(x).relu().mean(1)), x, rtol=1e-4, atol=1e-5)


def test_an_operand_that_a_number_makes_needless_is_not_computed() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.logical_or(x.all(-2), torch.full((x.shape[0],), 0.5))

    x = torch.zeros(4, 4)
    torch.testing.assert_close(torch.compile(program, backend="taskmap")(x), program(x))
