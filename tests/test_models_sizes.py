"""The seven networks in training at batches, heights, widths and lengths that vary independently.

One compilation serves all sizes, and its gradients are as close to float64's as eager's are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from taskmap.torch_backend import compile_fx
from taskmap.util.metrics import metrics

MOST = 8.0
"""The largest error of a gradient, as a multiple of float32 eager's."""
ROUNDING = 1e-5
"""The least that eager's error counts as."""
IMAGES, TOKENS = (0, 2, 3), (0, 1)
"""Dimensions of an input that vary."""
SIZES: dict[str, tuple[tuple[int, ...], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    # the dimensions, sizes of the small variant, sizes of the whole network
    "resnet50": (IMAGES, [(2, 37, 53), (3, 61, 43), (5, 41, 71)], [(2, 97, 131), (3, 113, 67)]),
    "mobilenet_v2": (IMAGES, [(2, 37, 53), (3, 61, 43), (5, 41, 71)], [(2, 97, 131), (3, 113, 67)]),
    "inception_v3": (IMAGES, [(2, 107, 83), (3, 89, 127)], [(2, 107, 151), (3, 131, 89)]),
    "bert_base": (TOKENS, [(2, 7), (7, 3), (5, 11)], [(2, 31), (7, 17)]),
    "gpt2": (TOKENS, [(2, 7), (7, 3), (5, 11)], [(2, 31), (7, 17)]),
    "vit_b_16": ((0,), [(2,), (5,), (3,)], [(2,), (3,)]),  # its positions fix height and width
    "llama": (TOKENS, [(2, 7), (7, 3), (5, 11)], [(2, 31), (7, 17)]),
}

CI = ("llama",)
"""Tokens; the others, whose C takes minutes to compile, have their kinds of layers in ``Blocks``."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", [n if n in CI else pytest.param(n, marks=pytest.mark.long) for n in MODELS])
def test_small_networks_train_at_independent_sizes(name: str) -> None:
    check(name, small=True)


class Blocks(nn.Module):
    """The layers of a mobile network, each once: a strided convolution, an inverted residual, a pool, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.wide = nn.Sequential(nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6())
        self.deep = nn.Sequential(nn.Conv2d(24, 24, 3, 1, 1, groups=24, bias=False), nn.BatchNorm2d(24), nn.ReLU6())
        self.narrow = nn.Sequential(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.out = nn.Linear(8, 10)

    def forward(self, image: Tensor) -> Tensor:
        """[batch, 3, height, width] to [batch, 10]."""
        x = self.first(image)
        x = x + self.narrow(self.deep(self.wide(x)))
        return self.out(x.mean((2, 3)))  # type: ignore[no-any-return]


def test_a_network_of_each_kind_of_layer_trains_at_independent_sizes() -> None:
    torch.manual_seed(0)
    train(Blocks(), torch.randn(2, 3, 32, 32), {}, IMAGES, SIZES["mobilenet_v2"][1])


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_whole_networks_train_at_independent_sizes(name: str) -> None:
    check(name, small=False)


def check(name: str, small: bool) -> None:
    """One of the seven networks, small or whole."""
    module, args, kwargs = MODELS[name].build(seed=0, small=small)
    varying, *choices = SIZES[name]
    train(without_dropout(module), args[0], kwargs, varying, choices[0] if small else choices[1])


def train(
    module: nn.Module,
    image: Tensor,
    kwargs: dict[str, object],
    varying: Sequence[int],
    choices: Sequence[Sequence[int]],
) -> None:
    """Gradients at every size, from one forward and one backward graph."""
    module = module.train()
    compiled: nn.Module = torch.compile(copy.deepcopy(module), backend=compile_fx, fullgraph=True)  # type: ignore[assignment]  # it is one
    before = metrics().graphs
    generator = torch.Generator().manual_seed(0)
    for sizes in choices:
        x = resized(image, varying, sizes, generator)
        wide, wide_inputs = to_float64(module, (x,))
        reference = gradients(wide, wide_inputs[0], kwargs)
        eager = relative_error(gradients(copy.deepcopy(module), x, kwargs), reference)
        for dimension in varying:
            torch._dynamo.mark_dynamic(x, dimension)
        error = relative_error(gradients(compiled, x, kwargs), reference)
        assert error <= MOST * max(eager, ROUNDING), (sizes, error, eager)
    assert metrics().graphs - before == 2


def without_dropout(module: nn.Module) -> nn.Module:
    """The module with dropout disabled."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


def resized(x: Tensor, varying: Sequence[int], sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """An input of the same kind at other sizes."""
    shape = list(x.shape)
    for dimension, size in zip(varying, sizes, strict=True):
        shape[dimension] = size
    if x.is_floating_point():
        return torch.randn(shape, generator=generator)
    return torch.randint(0, int(x.max()) + 1, shape, generator=generator)


def gradients(module: nn.Module, x: Tensor, kwargs: dict[str, object]) -> tuple[Tensor, ...]:
    """The gradients of a weighted sum of the outputs for all parameters, as one vector, so that no tiny gradient is
    judged alone."""
    outputs = as_tensors(module(x, **kwargs))
    ups = [torch.linspace(-0.5, 1.5, o.numel()).view(o.shape).to(o.dtype) for o in outputs]
    parameters = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(outputs, parameters, ups, allow_unused=True)
    return (torch.cat([g.reshape(-1) for g in found if g is not None]),)
