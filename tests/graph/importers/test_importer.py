"""The FX importer: native and extern operators, strides, origins, constants, refusals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from taskmap.graph.extern import Slot, call_extern, fill
from taskmap.graph.importers.torch.aten import ATEN
from taskmap.graph.importers.torch.decompositions import decompositions
from taskmap.graph.importers.torch.fx import import_fx
from taskmap.graph.importers.torch.mixed_norms import mixed_norms
from taskmap.graph.importers.torch.table import Table
from taskmap.graph.importers.torch.types import dtype_of, refusal, torch_dtype
from taskmap.graph.nodes import ConstantNode, ExternNode, Graph, InputNode, ItemNode, Node
from taskmap.graph.reference import run
from taskmap.ir.errors import GraphError, ImportGraphError, InputError
from taskmap.ir.nodes import Var
from taskmap.ir.types import ALL_DTYPES
from tests.graph.importers.test_operators import check, draw
from tests.graph.tracing import evaluate, trace

_MODEL_OPERATORS = """
    _native_batch_norm_legit_no_training.default _scaled_dot_product_flash_attention_for_cpu.default
    _unsafe_view.default add.Tensor addmm.default alias.default arange.default avg_pool2d.default bitwise_and.Tensor
    cat.default clone.default convolution.default cumsum.default embedding.default eq.Tensor expand.default
    gather.default gelu.default hardtanh.default index.Tensor le.Tensor max_pool2d_with_indices.default mean.dim
    mm.default mul.Tensor native_layer_norm.default ne.Scalar neg.default new_ones.default permute.default
    pow.Tensor_Scalar relu.default rsqrt.default scalar_tensor.default select.int silu.default slice.Tensor
    split.Tensor sub.Tensor t.default tanh.default transpose.int unbind.int unsqueeze.default view.default
    where.self
"""
MODEL_OPERATORS = _MODEL_OPERATORS.split()


def imported(function: Callable[..., Any], *args: torch.Tensor) -> Graph:
    """The graph of ``function`` as make_fx traces it, without decompositions."""
    return import_fx(make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*args), args)


N = TypeVar("N", bound=Node)


def only(graph: Graph, kind: type[N]) -> N:
    (node,) = (n for n in graph.nodes() if isinstance(n, kind))
    return node


def test_at_least_150_operators_are_native() -> None:
    aten = [name for name in ATEN.entries if not name.startswith(("prims.", "taskmap."))]
    assert len(aten) >= 150
    for name in aten:
        packet, overload = name.split(".")
        assert isinstance(getattr(getattr(torch.ops.aten, packet), overload), torch._ops.OpOverload), name


def test_the_operators_of_the_models_are_native() -> None:
    assert [name for name in MODEL_OPERATORS if name not in ATEN.entries] == []


def test_what_is_native_is_not_decomposed() -> None:
    """But normalisations of mixed types, which are those of f32 between casts."""
    taken_apart, mixed = ({str(op).removeprefix("aten.") for op in rules()} for rules in (decompositions, mixed_norms))
    assert taken_apart & ATEN.entries.keys() == mixed
    assert {"addcmul.default", "native_dropout.default"}.isdisjoint(taken_apart)
    assert len(taken_apart) > 300


def test_a_table_takes_one_lowering_for_each_name() -> None:
    table = Table()
    table.lowering("a.default", "b.default")(lambda x: x)
    with pytest.raises(GraphError, match="two lowerings"):
        table.lowering("b.default")(lambda x: x)


def test_types_go_both_ways() -> None:
    for dtype in ALL_DTYPES:
        assert dtype_of(torch_dtype(dtype)) is dtype
    assert dtype_of(torch.complex64).kind == "x"


def test_tensors_that_taskmap_cannot_hold() -> None:
    assert refusal(draw(2)) is None
    assert refusal(torch.zeros(2, dtype=torch.complex64)) == "element type complex64"
    assert refusal(torch.zeros(2).to_sparse()) == "layout sparse_coo"
    assert refusal(torch.zeros(2, device="meta")) == "device meta"
    assert refusal(torch.zeros(0)) == "a tensor without elements"
    assert refusal(torch.zeros(0), empty=True) is None


def test_an_operator_without_a_lowering_is_extern() -> None:
    graph = imported(lambda x, y: torch.sort(x + y, dim=0)[0] * 2, draw(5), draw(5))
    extern = only(graph, ExternNode)
    assert extern.target is torch.ops.aten.sort.default
    assert extern.args == (Slot(0), 0)
    assert extern.kwargs == {}
    assert extern.reason == "no taskmap operator"
    assert extern.inputs[0].op == "add"
    item = only(graph, ItemNode)
    assert item.inputs == (extern,)
    assert (item.index, item.shape, item.strides) == (0, (5,), (1,))
    (result,) = evaluate(graph, [draw(5), draw(5)])
    torch.testing.assert_close(result, (draw(5) * 2).sort()[0] * 2)


def test_arguments_of_an_extern_are_nested() -> None:
    mask = torch.tensor([True, False, False, True])
    graph = imported(lambda x, m: torch.index_put(x, [m], x[1:3], True), draw(4, 3), mask)
    extern = only(graph, ExternNode)
    assert extern.args == (Slot(0), [Slot(1)], Slot(2), True)
    assert [n.op for n in extern.inputs] == ["input", "input", "slice"]
    (result,) = evaluate(graph, [draw(4, 3), mask])
    torch.testing.assert_close(result, draw(4, 3).index_put((mask,), draw(4, 3)[1:3], True))


def test_slots_and_sizes_are_filled_in() -> None:
    n = Var("n")
    structure = (Slot(1), [n, 2, {"a": Slot(0)}], None)
    assert fill(structure, ["x", "y"], lambda e: 7 if e is n else -1) == ("y", [7, 2, {"a": "x"}], None)


def test_an_extern_is_called_as_it_stood() -> None:
    node = ExternNode((), (), dtype_of(torch.float32), max, ([Slot(0), Slot(1)],), {"default": 0}, "")
    assert call_extern(node, [3, 5], lambda e: 0) == 5
    with pytest.raises(GraphError, match="cannot be called"):
        call_extern(replace(node, target="not a function"), [3, 5], lambda e: 0)


REASONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "complex": (lambda x: (x * 1j).real, (draw(3),), "complex"),
    "empty": (lambda x: x[:0].sum(), (draw(3),), "a tensor without elements"),
    "mask": (lambda x: x.cumsum(0), (draw(2000),), "cumsum over 2000 elements"),
    "bits": (lambda x: x.view(torch.int32), (draw(3),), "bit by bit"),
    "random": (lambda x: torch.bernoulli(x), (draw(3).sigmoid(),), "no taskmap operator"),
    "integer power": (lambda x: x**-2, (torch.tensor([1, -1]),), "integer power"),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_for_an_extern(name: str) -> None:
    function, args, reason = REASONS[name]
    graph = imported(function, *args)
    externs = [n for n in graph.nodes() if isinstance(n, ExternNode)]
    assert any(reason in n.reason for n in externs), [n.reason for n in externs]


def test_a_lowering_that_is_wrong_about_a_type_leads_to_an_extern(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ATEN.entries["relu.default"]
    monkeypatch.setitem(ATEN.entries, "abs.default", ATEN.entries["isnan.default"])
    monkeypatch.setitem(ATEN.entries, "t.default", wrong)
    graph = imported(lambda x: (x.abs(), x.t()), draw(2, 3))
    reasons = [n.reason for n in graph.nodes() if isinstance(n, ExternNode)]
    wrong_type, wrong_shape = reasons
    assert wrong_type == "its lowering gives bool[2, 3], PyTorch f32[2, 3]"
    assert wrong_shape == "its lowering gives f32[2, 3], PyTorch f32[3, 2]"
    outputs = evaluate(graph, [draw(2, 3)])
    torch.testing.assert_close(outputs, [draw(2, 3).abs(), draw(2, 3).t()])


def test_results_have_the_strides_of_eager() -> None:
    x = draw(2, 3, 4)
    graph = imported(lambda x: (x.transpose(0, 2) + 1, x.sum(1).t(), x + 0), x)
    assert [n.strides for n in graph.outputs if n is not None] == [(1, 4, 12), (1, 4), (12, 4, 1)]
    assert graph.inputs[0].strides == (12, 4, 1)


def test_an_extern_gets_its_inputs_as_eager_lays_them() -> None:
    graph = imported(lambda x: torch.sort(x.t() + 1)[0], draw(3, 4))
    (source,) = only(graph, ExternNode).inputs
    assert source.strides == (1, 4)


def test_a_value_that_must_lie_in_two_ways_is_copied() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y.clone(memory_format=torch.channels_last)

    x = draw(2, 3, 4, 5)
    graph = imported(function, x)
    first, second = (n for n in graph.outputs if n is not None)
    assert (first.op, second.op) == ("add", "copy")
    assert first.strides == x.stride()
    assert second.strides == x.contiguous(memory_format=torch.channels_last).stride()


def test_results_share_no_node_that_eager_does_not_share() -> None:
    graph = imported(lambda x: (x.clone(), (x * 2).clone(), x * 2), draw(3))
    assert [n.op for n in graph.outputs if n is not None] == ["copy", "mul", "mul"]
    nodes = [n for n in graph.outputs if n is not None]
    assert len({*nodes, *graph.inputs}) == 4


def test_an_input_may_be_a_result() -> None:
    gm = make_fx(lambda x, y: (x, y + 1), tracing_mode="fake")(draw(3), draw(3))
    graph = import_fx(gm, [draw(3), draw(3)])
    assert graph.outputs[0] is graph.inputs[0]


def test_nothing_may_be_a_result() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = draw(3)
    graph.output([None, x, 4])
    made = import_fx(fx.GraphModule(nn.Module(), graph), [])
    assert made.outputs[0] is None
    assert evaluate(made, [draw(3)])[2] == 4


def test_tensors_of_the_module_are_constants() -> None:
    weight = draw(3)
    graph = imported(lambda x: x * weight, draw(2, 3))
    constant = only(graph, ConstantNode)
    assert torch.equal(constant.value, weight)
    assert constant.strides == (1,)
    torch.testing.assert_close(evaluate(graph, [draw(2, 3)]), [draw(2, 3) * weight])


def test_the_users_line_is_kept() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0)  # the user's line

    seen: list[Graph] = []

    def backend(gm: fx.GraphModule, example_inputs: Any) -> Any:
        traced = make_fx(gm, tracing_mode="fake")(*example_inputs)
        for node in traced.graph.nodes:
            node.meta["stack_trace"] = next(iter(gm.graph.find_nodes(op="call_method"))).meta["stack_trace"]
        seen.append(import_fx(traced, example_inputs))
        return gm.forward

    torch.compile(function, backend=backend)(draw(5))
    (graph,) = seen
    made = [n for n in graph.nodes() if not isinstance(n, InputNode)]
    assert len(made) == 4
    for node in made:
        assert Path(node.origin.file).name == "test_importer.py"
        assert node.origin.text.startswith("return x.softmax(0)")
        assert node.origin.line == function.__code__.co_firstlineno + 1
    assert str(made[-1].origin).startswith("test_importer.py:")


def test_a_graph_that_mutates_is_refused() -> None:
    with pytest.raises(ImportGraphError, match="mutates"):
        imported(lambda x: x.clone().add_(1), draw(3))


def test_a_graph_of_modules_is_refused() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x)
            return result

    with pytest.raises(ImportGraphError, match="call_module"):
        import_fx(fx.symbolic_trace(Model()), [draw(3)])


def test_storage_is_read_through_views() -> None:
    check(lambda x: torch.as_strided((x + 1)[2:], (3, 2), (3, 1), 4), draw(5, 3))
    check(lambda x: torch.as_strided((x + 1).t()[1], (2, 2), (1, 5), 0), draw(5, 3))
    check(lambda x: torch.as_strided(x, (2, 2), (1, 2), 3), draw(5, 3))


def test_part_of_an_input_is_read_by_pytorch() -> None:
    x = draw(5, 3)[1:]
    graph = imported(lambda x: torch.as_strided(x, (2, 2), (1, 2), 0), x)
    assert "part of its storage" in only(graph, ExternNode).reason


def test_the_reference_refuses_what_it_cannot_run() -> None:
    graph = imported(lambda x: torch.sort(x)[0], draw(3))
    with pytest.raises(GraphError, match="no function was given that runs it"):
        run(graph, [draw(3).numpy()])
    with pytest.raises(InputError, match="takes 1 inputs"):
        run(graph, [])


def test_random_numbers_are_those_of_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3) + torch.rand_like(x) * torch.bernoulli(x.sigmoid())

    torch.manual_seed(5)
    want = function(draw(40))
    torch.manual_seed(5)
    traced = trace(function, (draw(40),))
    torch.testing.assert_close(traced.outputs, [want])
    ordered = sorted(traced.externs, key=lambda n: n.id)
    names = [str(n.target).split(".")[1] for n in ordered]
    assert names == ["native_dropout", "rand_like", "bernoulli"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batch_norm_in_inference_as_on_a_gpu(dtype: torch.dtype) -> None:
    """There PyTorch also returns the statistics, in f32, where it returns nothing on a CPU."""

    def function(*given: torch.Tensor) -> Any:
        return torch.ops.aten._native_batch_norm_legit_no_training(*given, 0.1, 1e-5)

    x, w, b, mean = draw(2, 3, 4).to(dtype), draw(3).to(dtype), draw(3).to(dtype), draw(3)
    var = draw(3).square() + 0.1
    elsewhere = [t.to("meta") for t in (x, w, b, mean, var)]
    traced = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*elsewhere)
    graph = import_fx(traced, elsewhere, device=torch.device("meta"))
    assert not [n.reason for n in graph.nodes() if isinstance(n, ExternNode)]
    y, saved_mean, saved_rstd = evaluate(graph, [x, w, b, mean, var])
    want = F.batch_norm(x.double(), mean.double(), var.double(), w.double(), b.double())
    torch.testing.assert_close(y, want.to(dtype))
    torch.testing.assert_close(saved_mean, mean)
    torch.testing.assert_close(saved_rstd, (var + 1e-5).rsqrt())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rms_norm_with_the_eps_of_its_type(dtype: torch.dtype) -> None:
    """Of f16 that of f32, in which it is computed. x is so small that the eps decides."""
    x = draw(3, 8).to(dtype) * 2e-4
    wide = x.double() if dtype == torch.float64 else x.float()
    want = (wide.square().mean(-1, keepdim=True) + torch.finfo(wide.dtype).eps).rsqrt()
    # Only tensors of a GPU are given to this operator: elsewhere PyTorch decomposes it.
    traced = fx.Graph()
    given = traced.placeholder("x")
    given.meta["val"] = x
    norm = traced.call_function(torch.ops.aten._fused_rms_norm.default, (given, [8], None, None))
    norm.meta["val"] = (x, want)
    traced.output([traced.call_function(operator.getitem, (norm, k)) for k in range(2)])
    for node, value in zip(list(traced.nodes)[2:4], (x, want), strict=True):
        node.meta["val"] = value
    graph = import_fx(fx.GraphModule(nn.Module(), traced), [x])
    assert not [n for n in graph.nodes() if isinstance(n, ExternNode)]
    y, rstd = evaluate(graph, [x])
    torch.testing.assert_close(rstd, want)
    torch.testing.assert_close(y, (wide * want).to(dtype))
