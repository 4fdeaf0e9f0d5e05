"""The seven networks, in their small variants, through torch.compile: as accurate as eager, all native, with
outputs of the same form.

TASKMAP_TEST_BACKEND names another backend to run the same comparison with, such as "aot_eager" or "inductor": what
fails there too is a fault of the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import taskmap
from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from benchmarks.models.densenet import DENSENET121
from benchmarks.support.engines import torch_backend

BACKEND = os.environ.get("TASKMAP_TEST_BACKEND", "taskmap")
MOST = 4.0
"""The largest error allowed, as a multiple of float32 eager's."""
ROUNDING = torch.finfo(torch.float32).eps / 2
"""The least that eager's error counts as: it may be smaller by luck, but no result is rounded better than this."""

LONGEST = "inception_v3"
"""The network that takes longest to compile: three times as long as the next."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(params=[pytest.param(m, marks=pytest.mark.long if m == LONGEST else ()) for m in MODELS])
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def other_inputs(args: tuple[Any, ...], generator: torch.Generator) -> tuple[Any, ...]:
    """Inputs of the same kind: floating-point ones drawn anew, token ids in another order."""

    def draw(x: Tensor) -> Tensor:
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return x[..., torch.randperm(x.shape[-1], generator=generator)]

    return tuple(draw(x) for x in args)


def test_error_is_within_four_times_that_of_float32_eager(model: str) -> None:
    module, args, kwargs = MODELS[model].build(seed=0, small=True)
    compiled = torch.compile(module, backend=torch_backend(BACKEND), fullgraph=True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for inputs in (args, other_inputs(args, generator), other_inputs(args, generator)):
            wide, wide_inputs = to_float64(module, inputs)
            reference = as_tensors(wide(*wide_inputs, **kwargs))
            eager = relative_error(as_tensors(module(*inputs, **kwargs)), reference)
            error = relative_error(as_tensors(compiled(*inputs, **kwargs)), reference)
            assert error <= MOST * max(eager, ROUNDING)


def test_outputs_have_the_form_of_eagers(model: str) -> None:
    module, args, kwargs = MODELS[model].build(seed=2, small=True)
    compiled = torch.compile(module, backend=torch_backend(BACKEND))
    with torch.no_grad():
        wanted, found = module(*args, **kwargs), compiled(*args, **kwargs)
    assert type(found) is type(wanted)
    assert [form(x) for x in as_tensors(found)] == [form(x) for x in as_tensors(wanted)]


def form(x: Tensor) -> tuple[object, ...]:
    """The form of outputs: everything except the values."""
    return x.shape, x.stride(), x.dtype, x.device, x.requires_grad


def test_no_node_is_left_to_pytorch(model: str) -> None:
    module, args, kwargs = MODELS[model].build(seed=3, small=True)
    with torch.no_grad():
        report = taskmap.explain(module, *args, **kwargs)
    assert [str(node) for node in report.externs] == []
    assert len(report.groups) > 0


def test_the_full_size_model_has_the_published_number_of_parameters(model: str) -> None:
    with torch.device("meta"):
        module, _, _ = MODELS[model].build()
    assert sum(p.numel() for p in module.parameters()) == MODELS[model].parameters
    assert not module.training


def test_densenet_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        module, _, _ = DENSENET121.build()
    assert sum(p.numel() for p in module.parameters()) == DENSENET121.parameters


def test_a_seed_decides_weights_and_inputs_and_nothing_else(model: str) -> None:
    torch.manual_seed(7)
    untouched = torch.rand(1)
    torch.manual_seed(7)
    one, (x, *_), _ = MODELS[model].build(seed=4, small=True)
    assert torch.equal(torch.rand(1), untouched)
    same, (y, *_), _ = MODELS[model].build(seed=4, small=True)
    other, (z, *_), _ = MODELS[model].build(seed=5, small=True)
    assert torch.equal(x, y)
    assert not torch.equal(x, z)
    assert all(torch.equal(p, q) for p, q in zip(one.state_dict().values(), same.state_dict().values(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_the_comparison_sees_what_it_should() -> None:
    reference = (torch.ones(4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    near = (torch.full((4,), 1.001), torch.zeros(2))
    assert relative_error(near, reference) == pytest.approx(1e-3, rel=1e-3)
    assert relative_error((torch.tensor([1.0, 1.0, float("nan"), 1.0]), torch.zeros(2)), reference) != 0.0
    assert not relative_error((near[0] * float("inf"), near[1]), reference) <= 1e30
    assert relative_error((near[0], torch.full((2,), 1e-6)), reference) > 1.0
    with pytest.raises(ValueError, match="shape"):
        relative_error((torch.ones(2, 2), torch.zeros(2)), reference)
    with pytest.raises(ValueError, match="1 outputs"):
        relative_error((near[0],), reference)


def test_outputs_are_read_in_order_and_strangers_refused() -> None:
    a, b, c = torch.rand(3, 1)
    assert [float(t) for t in as_tensors({"x": a, "y": (None, [b]), "z": c})] == [float(a), float(b), float(c)]
    with pytest.raises(TypeError, match="str"):
        as_tensors((a, "hidden"))
