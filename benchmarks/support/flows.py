"""Programs whose calls differ in lengths, batches, caches, scalars or modes. Each difference may cause recompilation.

A flow takes a function that compiles a function or module (for eager: the identity), makes all its calls, and returns
their results. It draws from torch's global generator, so that after one seed all engines see the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Compile = Callable[..., Callable[..., Any]]
"""From a function or module, and keyword arguments of torch.compile, to a function."""
Flow = Callable[[Compile], list[Tensor]]

FLOWS: dict[str, Flow] = {}


def flow(name: str) -> Callable[[Flow], Flow]:
    """Adds a flow to the table."""

    def enter(function: Flow) -> Flow:
        FLOWS[name] = function
        return function

    return enter


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu", norm_first=True)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


def inferred(run: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [run(x) for x in inputs]


def trained(model: nn.Module, run: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """The parameters' gradients of each step."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [torch.cat([g.reshape(-1) for g in torch.autograd.grad(run(x).square().mean(), parameters)]) for x in inputs]


@flow("lengths, inference")
def lengths(compile: Compile) -> list[Tensor]:
    return inferred(compile(encoder().train()), [torch.randn(2, n, 16) for n in (5, 9, 14, 30, 7)])


@flow("lengths, training")
def lengths_training(compile: Compile) -> list[Tensor]:
    model = encoder()
    return trained(model, compile(model), [torch.randn(2, n, 16) for n in (5, 9, 14, 7)])


@flow("batch sizes, inference")
def batches(compile: Compile) -> list[Tensor]:
    return inferred(compile(convnet().eval()), [torch.randn(n, 3, 16, 16) for n in (4, 2, 7, 16, 3)])


@flow("batch sizes, training")
def batches_training(compile: Compile) -> list[Tensor]:
    model = convnet()
    return trained(model, compile(model), [torch.randn(n, 3, 16, 16) for n in (4, 3, 7, 16)])


@flow("batch sizes from 1 on")
def batches_from_one(compile: Compile) -> list[Tensor]:
    return inferred(compile(convnet().eval()), [torch.randn(n, 3, 16, 16) for n in (1, 2, 5, 1, 8)])


@flow("batch, height and width")
def images(compile: Compile) -> list[Tensor]:
    sizes = ((2, 16, 24), (3, 16, 24), (5, 20, 24), (7, 22, 26), (4, 33, 18))
    return inferred(compile(convnet().eval()), [torch.randn(b, 3, h, w) for b, h, w in sizes])


@flow("a longer last batch of an epoch")
def last_batch(compile: Compile) -> list[Tensor]:
    model = convnet()
    return trained(model, compile(model), [torch.randn(n, 3, 16, 16) for n in (8, 8, 5, 8, 8, 5)])


@flow("mark_dynamic, inference")
def marked(compile: Compile) -> list[Tensor]:
    return inferred(compile(convnet().eval()), list(marked_dynamic([torch.randn(n, 3, 16, 16) for n in (4, 2, 7)], 0)))


@flow("mark_dynamic on two dimensions, training")
def marked_training(compile: Compile) -> list[Tensor]:
    model = encoder()
    sizes = ((2, 5), (3, 9), (7, 4))
    return trained(model, compile(model), list(marked_dynamic([torch.randn(b, n, 16) for b, n in sizes], 0, 1)))


@flow("maybe_mark_dynamic of a fixed size")
def maybe_marked(compile: Compile) -> list[Tensor]:
    inputs = [torch.randn(n, 6) for n in (3, 5, 8)]
    for x in inputs:
        torch._dynamo.maybe_mark_dynamic(x, 1)  # a linear layer fixes it
    return inferred(compile(nn.Linear(6, 4)), inputs)


@flow("dynamic=True")
def dynamic(compile: Compile) -> list[Tensor]:
    return inferred(
        compile(encoder().train(), dynamic=True), [torch.randn(b, n, 16) for b, n in ((2, 5), (3, 9), (4, 4))]
    )


@flow("dynamic=False")
def static(compile: Compile) -> list[Tensor]:
    return inferred(compile(convnet().eval(), dynamic=False), [torch.randn(n, 3, 16, 16) for n in (4, 2, 7, 2)])


@flow("generation, growing cache")
def growing_cache(compile: Compile) -> list[Tensor]:
    def step(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        return F.scaled_dot_product_attention(q, keys, values), keys, values

    run, found = compile(step), []
    keys, values = torch.randn(2, 1, 2, 7, 8)
    for _ in range(6):
        y, keys, values = run(*torch.randn(3, 1, 2, 1, 8), keys, values)
        found.append(y)
    return found


def at_position(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, at: Any) -> Tensor:
    """Attention over a cache of fixed length that takes k and v at position ``at``, a tensor or a number."""
    at = torch.as_tensor(at).reshape(1)
    keys.index_copy_(2, at, k)
    values.index_copy_(2, at, v)
    seen = torch.arange(keys.shape[2]) <= at
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None, None])


@flow("generation, static cache, position a tensor")
def static_cache(compile: Compile) -> list[Tensor]:
    run, (keys, values) = compile(at_position), torch.zeros(2, 1, 2, 16, 8)
    return [run(*torch.randn(3, 1, 2, 1, 8), keys, values, torch.tensor(i)) for i in range(6)]


@flow("generation, static cache, position a number")
def static_cache_number(compile: Compile) -> list[Tensor]:
    run, (keys, values) = compile(at_position), torch.zeros(2, 1, 2, 16, 8)
    return [run(*torch.randn(3, 1, 2, 1, 8), keys, values, i) for i in range(2, 8)]


@flow("an int that changes")
def ints(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x, n: (x * n + n // 2).roll(n, 0)), torch.randn(6, 4)
    return [run(x, n) for n in (3, 5, 8, 2, 11)]


@flow("a float that changes")
def floats(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x, a: (x * a).exp() + a / 2), torch.randn(6, 4)
    return [run(x, a) for a in (0.5, 0.25, 1.5, 0.125, 0.75)]


@flow("a learning rate that changes")
def learning_rates(compile: Compile) -> list[Tensor]:
    def step(p: Tensor, g: Tensor, m: Tensor, rate: float, count: int) -> tuple[Tensor, Tensor]:
        m = m * 0.9 + g * 0.1
        return p - rate * m / (1 - 0.9**count), m

    run, (p, m) = compile(step), torch.zeros(2, 8)
    found = []
    for count in range(1, 7):
        p, m = run(p, torch.randn(8), m, 0.1 / count, count)
        found.append(p)
    return found


@flow("a bool that changes")
def bools(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x, up: x.relu() if up else x.tanh()), torch.randn(6, 4)
    return [run(x, up) for up in (True, False, True, False)]


@flow("a slice of changing length")
def slices(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x, n: x[:n].softmax(0) * x[-n:]), torch.randn(20, 4)
    return [run(x, n) for n in (3, 5, 8, 2, 11)]


@flow("resizing by a changing factor")
def resized(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x, n: F.interpolate(x, (n, 2 * n), mode="bilinear")), torch.randn(1, 2, 5, 7)
    return [run(x, n) for n in (8, 10, 13, 6)]


@flow("a count in the module")
def counted(compile: Compile) -> list[Tensor]:
    class Counting(nn.Module):
        calls = 2

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    return inferred(compile(Counting()), [torch.randn(4) for _ in range(5)])


@flow("training and evaluation in turn")
def turns(compile: Compile) -> list[Tensor]:
    model = convnet()
    run, found = compile(model), []
    for training in (True, False, True, False):
        model.train(training)
        found += inferred(run, [torch.randn(4, 3, 16, 16)])
    return found


@flow("with and without gradients")
def grad_modes(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x: (x.sin() @ x.t()).sum(0)), torch.randn(5, 6)
    found = []
    for wanted in (True, False, True, False):
        given = x.clone().requires_grad_(wanted)
        y = run(given)
        found += [y.detach(), *torch.autograd.grad(y.sum(), given)] if wanted else [y]
    return found


@flow("element types and strides")
def forms(compile: Compile) -> list[Tensor]:
    run, x = compile(lambda x: x.softmax(1) + 1), torch.randn(6, 6)
    return [run(y) for y in (x, x.t(), x.double(), x, x[:, ::2], x.t())]


@flow("a list of changing length")
def lists(compile: Compile) -> list[Tensor]:
    run = compile(lambda parts: torch.stack(parts).sum(0))
    return [run([torch.randn(4) for _ in range(n)]) for n in (2, 3, 4, 2)]


@flow("sizes 0 and 1")
def small(compile: Compile) -> list[Tensor]:
    run = compile(lambda x: x.relu().sum(1) * 2)
    return [run(torch.randn(n, 5)) for n in (4, 1, 0, 7, 1, 0)]


@flow("sizes as values")
def values(compile: Compile) -> list[Tensor]:
    run = compile(lambda x, y: x.sum() / x.shape[0] - y.sum() / (y.shape[0] + y.shape[1]))
    return [run(torch.randn(a, 3), torch.randn(b, c)) for a, b, c in ((4, 5, 6), (7, 3, 6), (5, 9, 4), (6, 2, 11))]


def marked_dynamic(inputs: list[Tensor], *dimensions: int) -> Iterator[Tensor]:
    for x in inputs:
        for dimension in dimensions:
            torch._dynamo.mark_dynamic(x, dimension)
        yield x
