"""Attention in the forms in which models write it out: recovered, or left alone where it must be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taskmap.graph.nodes import Graph, InputNode
from taskmap.graph.ops.matmul import bmm
from taskmap.graph.ops.softmax import softmax
from taskmap.graph.passes import PASSES, attention, run_passes
from taskmap.graph.passes.attention import RecoverAttention
from taskmap.graph.passes.elements import Elements
from taskmap.graph.reference import run
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.types import f32
from taskmap.torch_backend import compile_fx as backend
from tests.graph.tracing import to_array, trace

Form = Callable[..., Any]
NEVER = float("-inf")


def qkv(b: int, h: int, i: int, j: int, d: int, hk: int | None = None, e: int | None = None) -> list[Tensor]:
    """Queries [b, h, i, d], keys [b, hk, j, d], values [b, hk, j, e]."""
    return [torch.randn(b, h, i, d), torch.randn(b, hk or h, j, d), torch.randn(b, hk or h, j, e or d)]


def forms_of(function: Form, args: list[Tensor]) -> tuple[Graph, Graph]:
    """The graph of ``function`` after the passes before the recovery, and after the recovery."""
    with torch.no_grad():
        graph = trace(function, args).graphs[0]
    for step in PASSES[: [p.name for p in PASSES].index(RecoverAttention.name)]:
        graph = step.run(graph)
    return graph, RecoverAttention().run(graph)


def count(graph: Graph, op: str = "attention") -> int:
    return sum(n.op == op for n in graph.nodes())


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q * 0.25) @ k.transpose(-2, -1), -1) @ v


def scaled_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ (k / 3).mT).softmax(-1) @ v


def scaled_both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q / 4) @ (2 * (k.mT * 0.25))).softmax(-1) @ v


def scaled_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.dropout(torch.softmax(0.3 * torch.matmul(q, k.mT), dim=-1), 0.5, training=False) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.125
    return torch.einsum("bhij,bhje->bihe", scores.softmax(-1), v).flatten(2)


def flattened(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, i, _ = q.shape
    q, k, v = (x.reshape(b * h, x.shape[2], x.shape[3]) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
    return torch.bmm(weights, v).view(b, h, i, -1).transpose(1, 2).reshape(b, i, -1)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q[0, 0], k[0, 0], v[0, 0])


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    powers = torch.exp(scores - scores.max(-1, keepdim=True).values)
    return (powers / powers.sum(-1, keepdim=True)) @ v


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return plain(q, k, v)


def expanded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, hk, j, _ = k.shape
    many = q.shape[1] // hk
    k, v = (x[:, :, None].expand(b, hk, many, j, x.shape[-1]).reshape(b, hk * many, j, -1) for x in (k, v))
    return plain(q, k, v)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, i, d = q.shape
    out = plain(q.view(b, k.shape[1], -1, i, d), k[:, :, None], v[:, :, None])
    return out.reshape(b, h, i, -1)


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1)
    return torch.einsum("bhij,bjd->bhid", weights, v[:, 0])


def projected(x: Tensor, w: Tensor) -> Tensor:
    b, s, c = x.shape
    q, k, v = (y.view(b, s, 4, c // 4).transpose(1, 2) for y in (x @ w).chunk(3, -1))
    return plain(q, k, v).transpose(1, 2).reshape(b, s, c)


def additive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.2 + mask, -1) @ v


def forbidding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(mask == 0, NEVER).softmax(-1) @ v


def discouraging(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT / 8).masked_fill(mask == 0, -1e9).softmax(-1) @ v


def where(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.where(mask > 0, scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


def guarded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.mT + torch.where(mask > 0, 0.0, NEVER)
    weights = scores.softmax(-1)
    return torch.where(torch.isnan(weights), 0.0, weights) @ v


def inverted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT + (1.0 - mask) * -10000.0).softmax(-1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    allowed = torch.tril(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool))
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~allowed, NEVER).softmax(-1) @ v


def windows(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    b, h, i, j = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    scores = (q * 0.5) @ k.mT + bias
    many = mask.shape[0]
    scores = scores.view(b // many, many, h, i, j) + mask[None, :, None]
    return scores.view(b, h, i, j).softmax(-1) @ v


def precise(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 4, -1, dtype=torch.float32).to(q.dtype) @ v


def some(*shape: int) -> Tensor:
    """A mask of zeros and ones with a one in each row."""
    mask = (torch.rand(shape) > 0.4).float()
    mask[..., 0] = 1
    return mask


FORMS: dict[str, tuple[Form, Callable[[], list[Tensor]]]] = {
    "plain": (plain, lambda: qkv(2, 3, 37, 67, 16)),
    "primes": (plain, lambda: qkv(1, 3, 53, 131, 11, e=13)),
    "scaled query": (scaled_query, lambda: qkv(2, 3, 37, 67, 16)),
    "scaled key": (scaled_key, lambda: qkv(2, 3, 37, 67, 16)),
    "scaled both": (scaled_both, lambda: qkv(2, 3, 37, 67, 16)),
    "scaled scores": (scaled_scores, lambda: qkv(2, 3, 37, 67, 16)),
    "einsum": (einsum, lambda: qkv(2, 3, 37, 67, 16, e=11)),
    "flattened": (flattened, lambda: qkv(2, 3, 37, 67, 16)),
    "one head": (one_head, lambda: qkv(1, 1, 37, 97, 16)),
    "softmax by hand": (by_hand, lambda: qkv(2, 3, 37, 67, 16)),
    "repeated keys": (repeated, lambda: qkv(2, 6, 37, 67, 16, hk=2)),
    "expanded keys": (expanded, lambda: qkv(2, 6, 37, 67, 16, hk=3)),
    "grouped queries": (grouped, lambda: qkv(2, 6, 37, 67, 16, hk=2)),
    "one key head": (shared, lambda: qkv(2, 6, 37, 67, 16, hk=1)),
    "projected": (projected, lambda: [torch.randn(2, 67, 32), torch.randn(32, 96) / 6]),
    "additive mask": (additive, lambda: [*qkv(2, 3, 37, 67, 16), torch.randn(2, 1, 37, 67)]),
    "additive row": (additive, lambda: [*qkv(2, 3, 37, 67, 16), torch.randn(2, 1, 1, 67)]),
    "masked fill": (forbidding, lambda: [*qkv(2, 3, 37, 67, 16), some(37, 67)]),
    "masked fill, finite": (discouraging, lambda: [*qkv(2, 3, 37, 67, 16), some(2, 1, 1, 67)]),
    "where": (where, lambda: [*qkv(2, 3, 37, 67, 16), some(2, 3, 37, 67)]),
    "guarded": (guarded, lambda: [*qkv(2, 3, 37, 67, 16), some(2, 1, 37, 67)]),
    "inverted mask": (inverted, lambda: [*qkv(2, 3, 37, 67, 16), some(2, 1, 1, 67)]),
    "causal": (causal, lambda: qkv(1, 2, 71, 71, 16)),
    "windows": (windows, lambda: [*qkv(6, 2, 67, 67, 16), torch.randn(2, 67, 67), torch.randn(3, 67, 67)]),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(np.random.default_rng().integers(2**31))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FORMS)
def test_it_is_recovered_and_means_the_same(name: str) -> None:
    function, inputs = FORMS[name]
    args = inputs()
    before, after = forms_of(function, args)
    assert (count(before), count(after)) == (0, 1)
    assert count(after, "bmm") + count(after, "exp") + count(after, "softmax") == 0
    assert not name.startswith("scaled") or count(after, "mul") + count(after, "div") == 0
    arrays = [to_array(a) for a in args]
    for got, want in zip(run(after, arrays), run(before, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_it_computes_what_pytorch_does_in_f64(name: str) -> None:
    function, inputs = FORMS[name]
    args = inputs()
    with torch.no_grad():
        got = torch.compile(function, backend=backend)(*args)
        want = function(*(a.double() for a in args))
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [plain, precise])
def test_half_types_are_recovered(function: Form, dtype: torch.dtype) -> None:
    args = [a.to(dtype) for a in qkv(2, 3, 37, 67, 16)]
    assert count(forms_of(function, args)[1]) == 1
    with torch.no_grad():
        got = torch.compile(function, backend=backend)(*args)
        want = plain(*(a.double() for a in args))
    tolerance = 4e-3 if dtype == torch.float16 else 3e-2
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("queries", "keys"), [(1, 13), (7, 5), (2, 2)])
@pytest.mark.parametrize("function", [plain, flattened, forbidding])
def test_few_queries_or_keys_could_be_recovered(function: Form, queries: int, keys: int) -> None:
    args = [*qkv(2, 3, queries, keys, 16), *([some(queries, keys)] if function is forbidding else [])]
    graph, same = forms_of(function, args)
    assert same is graph
    after = RecoverAttention(queries=1, keys=1).run(graph)
    assert count(after) == 1
    arrays = [to_array(a) for a in args]
    np.testing.assert_allclose(run(after, arrays)[0], run(graph, arrays)[0], rtol=1e-5, atol=1e-5)


def test_one_key_needs_no_attention() -> None:
    graph, _ = forms_of(plain, qkv(2, 3, 37, 1, 16))
    assert RecoverAttention(queries=1, keys=1).run(graph) is graph


def test_symbolic_sizes_are_recovered() -> None:
    n, m = Var("n"), Var("m")
    shapes: tuple[tuple[Dim, ...], ...] = ((6, n, 16), (6, 16, m), (6, m, 16))
    q, k, v = inputs = [InputNode((), shape, f32, i) for i, shape in enumerate(shapes)]
    graph = Graph(inputs, [bmm(softmax(bmm(q, k), -1), v)], {n: ("size", 0, 1), m: ("size", 1, 2)})
    after = RecoverAttention().run(graph)
    assert count(after) == 1
    for queries, keys in ((3, 5), (5, 2)):
        arrays = [np.random.default_rng().normal(size=s).astype(np.float32) for s in
                  ((6, queries, 16), (6, 16, keys), (6, keys, 16))]  # fmt: skip
        np.testing.assert_allclose(run(after, arrays)[0], run(graph, arrays)[0], rtol=1e-5, atol=1e-5)


def test_the_given_graph_is_left_as_it_is() -> None:
    graph, _ = forms_of(forbidding, FORMS["masked fill"][1]())
    before = str(graph), [n.origin for n in graph.nodes()]
    assert RecoverAttention().run(graph) is not graph
    assert (str(graph), [n.origin for n in graph.nodes()]) == before


def test_key_heads_stay_shared() -> None:
    for function in (repeated, expanded, grouped):
        (found,) = (n for n in forms_of(function, qkv(2, 6, 37, 67, 16, hk=2))[1].nodes() if n.op == "attention")
        assert [n.shape[1] for n in found.inputs] == [6, 2, 2]


def test_a_flattened_batch_is_divided_into_heads() -> None:
    (found,) = (n for n in forms_of(flattened, qkv(2, 3, 37, 67, 16))[1].nodes() if n.op == "attention")
    assert found.shape == (2, 3, 37, 16)


@pytest.mark.parametrize("function", [forbidding, additive])
def test_a_row_that_may_look_at_nothing_is_nan_as_written(function: Form) -> None:
    q, k, v = qkv(2, 3, 37, 67, 16)
    mask = torch.ones(37, 67) if function is forbidding else torch.zeros(37, 67)
    mask[3] = 0 if function is forbidding else NEVER
    assert count(forms_of(function, [q, k, v, mask])[1]) == 1
    with torch.no_grad():
        got, want = torch.compile(function, backend=backend)(q, k, v, mask), function(q, k, v, mask)
    assert want[:, :, 3].isnan().all()
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_a_row_that_may_look_at_nothing_is_zero_where_it_is_written_so() -> None:
    q, k, v = qkv(2, 3, 37, 67, 16)
    mask = torch.ones(37, 67)
    mask[3] = 0
    assert count(forms_of(guarded, [q, k, v, mask])[1]) == 1
    with torch.no_grad():
        got, want = torch.compile(guarded, backend=backend)(q, k, v, mask), guarded(q, k, v, mask)
    assert (want[:, :, 3] == 0).all()
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def guarded_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return torch.where(torch.isnan(weights), 1.0, weights) @ v


def guarded_by_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.where(torch.isnan(scores), 0.0, scores.softmax(-1)) @ v


def guarded_by_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return torch.where(torch.isinf(weights), 0.0, weights) @ v


@pytest.mark.parametrize("function", [guarded_by_one, guarded_by_scores, guarded_by_infinities])
def test_other_guards_are_not_attention(function: Form) -> None:
    assert count(forms_of(function, qkv(2, 3, 37, 67, 16))[1]) == 0


def test_a_row_of_large_finite_masks_is_uniform_as_written() -> None:
    q, k, v = qkv(2, 3, 37, 67, 16)
    mask = torch.ones(37, 67)
    mask[3] = 0
    with torch.no_grad():
        got = torch.compile(discouraging, backend=backend)(q, k, v, mask)
    torch.testing.assert_close(got[:, :, 3], v.mean(2), rtol=2e-5, atol=2e-5)


def test_two_in_a_row_are_both_recovered() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(plain(q, k, v), k, v)

    args = qkv(2, 3, 37, 67, 16)
    before, after = forms_of(twice, args)
    assert count(after) == 2
    arrays = [to_array(a) for a in args]
    np.testing.assert_allclose(run(after, arrays)[0], run(before, arrays)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
def test_only_products_with_exponentials_behind_them_are_matched(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[Elements] = []

    def opened() -> Elements:
        matched.append(Elements())
        return matched[-1]

    def network(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(layers):
            x = x + plain(x @ w, x @ w.mT, x) @ w
        return x

    monkeypatch.setattr(attention, "Elements", opened)
    _, after = forms_of(network, [some(2, 3, 67, 16), some(16, 16)])
    assert count(after) == layers
    assert len(matched) == layers


def weights_returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def scores_returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores * 2


def weights_used_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights.sum(-1, keepdim=True)


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(1) @ v


def scaled_by_data(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    return (q @ k.mT * scale).softmax(-1) @ v


def scaled_by_a_score(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return (scores * scores).softmax(-1) @ v


def log_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).log_softmax(-1) @ v


def without_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    powers = (q @ k.mT).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


def other_total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (powers / powers.sum(-2, keepdim=True)) @ v


def transposed_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).mT @ v


def talking_heads(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    return torch.einsum("bhij,hg->bgij", q @ k.mT, mix).softmax(-1) @ v


def weights_masked_after(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) * mask) @ v


def two_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + (q * q) @ k.mT).softmax(-1) @ v


def mask_of_the_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.masked_fill(scores < 0, NEVER).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(q @ k.mT / 30) * 30).softmax(-1) @ v


def mask_over_a_new_axis(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT)[None] + mask).softmax(-1) @ v


REFUSED: dict[str, tuple[Form, Callable[[], list[Tensor]]]] = {
    "weights returned": (weights_returned, lambda: qkv(2, 3, 37, 67, 16)),
    "scores returned": (scores_returned, lambda: qkv(2, 3, 37, 67, 16)),
    "weights used twice": (weights_used_twice, lambda: qkv(2, 3, 37, 67, 16)),
    "over queries": (over_queries, lambda: qkv(2, 3, 67, 67, 16)),
    "over heads": (over_heads, lambda: qkv(2, 3, 37, 67, 16)),
    "scaled by data": (scaled_by_data, lambda: [*qkv(2, 3, 37, 67, 16), torch.randn(3, 1, 1)]),
    "scaled by a score": (scaled_by_a_score, lambda: qkv(2, 3, 37, 67, 16)),
    "log-softmax": (log_weights, lambda: qkv(2, 3, 37, 67, 16)),
    "without maximum": (without_maximum, lambda: qkv(2, 3, 37, 67, 16)),
    "other total": (other_total, lambda: qkv(2, 3, 67, 67, 16)),
    "transposed weights": (transposed_weights, lambda: qkv(2, 3, 67, 67, 16)),
    "talking heads": (talking_heads, lambda: [*qkv(2, 3, 37, 67, 16), torch.randn(3, 3)]),
    "weights masked after": (weights_masked_after, lambda: [*qkv(2, 3, 37, 67, 16), torch.rand(37, 67)]),
    "two products": (two_products, lambda: qkv(2, 3, 37, 67, 16)),
    "mask of the scores": (mask_of_the_scores, lambda: qkv(2, 3, 37, 67, 16)),
    "capped": (capped, lambda: qkv(2, 3, 37, 67, 16)),
    "mask over a new axis": (mask_over_a_new_axis, lambda: [*qkv(2, 3, 37, 67, 16), torch.randn(4, 1, 1, 37, 67)]),
    "double": (plain, lambda: [x.double() for x in qkv(2, 3, 37, 67, 16)]),
    "large heads": (plain, lambda: qkv(1, 1, 37, 67, 512)),
    "few queries": (plain, lambda: qkv(2, 3, 31, 67, 16)),
    "few keys": (plain, lambda: qkv(2, 3, 37, 63, 16)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_left_alone(name: str) -> None:
    function, inputs = REFUSED[name]
    before, after = forms_of(function, inputs())
    assert after is before
    assert count(after) == 0


def test_constant_keys_and_values_are_a_layer() -> None:
    graph, _ = forms_of(one_head, qkv(1, 1, 37, 67, 16))
    constant = replace(graph, constant_inputs=frozenset({1, 2}))
    assert RecoverAttention().run(constant) is constant
    assert count(RecoverAttention().run(replace(graph, constant_inputs=frozenset({0})))) == 1


def test_the_whole_pipeline_keeps_it() -> None:
    with torch.no_grad():
        graph = trace(plain, qkv(2, 3, 37, 67, 16)).graphs[0]
    assert count(run_passes(graph)) == 1
