"""Depthwise convolutions that compute their image by a product: edges, paddings, blocks, epilogues, work, refusals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from taskmap.graph.nodes import Node, OperatorNode
from taskmap.graph.ops import activations, arithmetic
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.passes.weight_packing import PackWeights
from taskmap.ir.construct import product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.expansion import ATTRIBUTE, WIDTH, ExpansionSizes
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Allocate, Dim, Kernel, Scope, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Task
from taskmap.ir.types import bf16
from taskmap.ir.visit import walk_stmts
from taskmap.schedules import choose_expansion, packed_width, problem, schedule
from taskmap.schedules.cpu.convolution.config import ConvolutionConfig
from taskmap.schedules.cpu.convolution.depthwise_config import DepthwiseConfig
from taskmap.schedules.cpu.convolution.template import schedule_convolution
from taskmap.schedules.cpu.matmul.microkernel import Tile
from tests.schedules.counting import products
from tests.schedules.graph_tasks import channels_last, fused, packed, random_epilogue, tensor
from tests.schedules.interpreting import check_every_pass
from tests.schedules.random_tasks import random_array
from tests.schedules.running import ISAS, Array, Case, call_kernel, check, compare_outputs, compiled, isas, target

LOOSE = {"f32": 1e-4}


def marked(node: Node, name: str = ATTRIBUTE, value: object = True) -> Node:
    """A convolution as the graph pass marks it; by default, a depthwise one that computes its image."""
    assert isinstance(node, OperatorNode)
    return replace(node, attrs=MappingProxyType({**node.attrs, name: value}))


def product_of(x: Node, filters: int, isa: str, stride: int = 1, width: int | None = None) -> Node:
    """A convolution of 1×1 of ``x`` with new packed weights, in panels of ``width``."""
    channels = x.shape[1]
    y = convolution(x, tensor(filters, channels, 1, 1, dtype=x.dtype), [stride], [0], [1])
    wanted = y if width is None else marked(y, WIDTH, width)
    return packed(wanted, PackWeights(partial(packed_width, target=target(isa))))


def expanding(
    x: Node,
    filters: int,
    isa: str,
    kernel: Sequence[int] = (3, 3),
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
    *,
    activate: bool = True,
    first_stride: int = 1,
    width: int | None = None,
) -> Node:
    """A product of ``x``, with a bias and a limit, under a window."""
    y = product_of(x, filters, isa, first_stride, width)
    if activate:
        y = activations.relu(add_channel_bias(y, tensor(filters)))
    return marked(convolution(y, tensor(filters, 1, *kernel), stride, padding, dilation, False, [0], filters))


def arrays_of(task: Task, seed: int, dims: dict[Var, int]) -> list[Array]:
    chance = random.Random(seed)
    return [random_array(chance, b.dtype, [size_of(d, dims) for d in b.shape]) for b in task.inputs]


def random_case(seed: int, isa: str, most: int = 19) -> Case:
    chance = random.Random(seed)
    dims: dict[Var, int] = {}
    images = chance.choice((1, 1, 2, 3))
    batch: Dim = images
    if seed % 4 == 1:
        batch = Var("batch")
        dims[batch] = images
    channels, filters = chance.choice((1, 3, 7, 16, 24)), chance.choice((2, 5, 16, 24, 37, 53, 96))
    kernel, stride, dilation = (
        [chance.choice(c) for _ in range(2)] for c in ((1, 2, 3, 3, 5), (1, 1, 2, 3), (1, 1, 2))
    )
    padding = [chance.choice((0, 1, 1, 2, 3)) for _ in range(2)]
    image = [chance.randint(1, most) for _ in range(2)]
    first_stride = chance.choice((1, 1, 1, 2))
    for d in range(2):
        while -(-image[d] // first_stride) + 2 * padding[d] <= (kernel[d] - 1) * dilation[d]:
            padding[d] += 1
    x = tensor(batch, channels, *image)
    slide = (kernel, stride, padding, dilation)
    y = expanding(x, filters, isa, *slide, activate=chance.random() < 0.8, first_stride=first_stride)
    outputs, strides = random_epilogue(chance, x, y, filters, activations.silu)
    task = fused(outputs, y, strides)
    return Case(task, arrays_of(task, seed, dims), dims, isa)


def test_random_expansions_on_the_machine() -> None:
    check([random_case(seed, isas()[seed % len(isas())]) for seed in range(18)], LOOSE)


@pytest.mark.parametrize("isa", ISAS)
def test_random_expansions_in_the_interpreter(isa: str) -> None:
    for seed in range(ISAS.index(isa), 6, 3):
        check_every_pass(random_case(100 + seed, isa, 5), LOOSE)


def panel_width_of(task: Task) -> int:
    """The width of the panels of a task's packed weights."""
    (weights,) = [b for b in task.inputs if b.rank == 5]
    width = static_size(weights.shape[-1])
    assert width is not None
    return width


@pytest.mark.parametrize("isa", isas())
def test_blocks_of_rows_and_of_panels(isa: str) -> None:
    """Neighbouring blocks compute the rows between them twice; the last panel and the last block are partial."""
    made: list[tuple[Case, Kernel]] = []
    for number, (kernel, stride, dilation) in enumerate([(3, 1, 1), (5, 2, 1), (3, 1, 2)]):
        x = tensor(2, 7, 13, 11)
        filters = 3 * 64 + 21
        y = expanding(x, filters, isa, [kernel] * 2, [stride] * 2, [kernel // 2] * 2, [dilation] * 2)
        task = fused([y], y, {k: channels_last(*k.shape) for k in (x, y)}, name=f"blocks{number}")
        case = Case(task, arrays_of(task, number, {}), isa=isa)
        rows, columns = (static_size(n) or 0 for n in y.shape[2:])
        width = panel_width_of(task)
        block, panels = ((1, 1), (2, 2), (rows, 3))[number]
        config = DepthwiseConfig(4, min(block, rows), columns, min(panels * width, filters))
        scheduled = schedule_convolution(task, target(isa), config)
        assert scheduled is not None
        assert f"block={config.rows}x{columns}, channels={config.channels}, expands=7" in scheduled.note
        made.append((case, scheduled))
    binaries = compiled([(kernel_of, isa) for _, kernel_of in made])
    for (case, kernel_of), binary in zip(made, binaries, strict=True):
        compare_outputs(case, call_kernel(kernel_of, *binary, case.arrays, {}), LOOSE)


def test_padding_is_zero_and_not_the_activation_of_zero() -> None:
    """A product with a bias is not 0 where its operand is: padding comes after the epilogue."""
    x = tensor(1, 4, 5, 5)
    z = activations.silu(add_channel_bias(product_of(x, 16, isas()[0]), tensor(16)))
    y = marked(convolution(z, tensor(16, 1, 3, 3), [1], [2], [1], False, [0], 16))
    task = fused([y], y)
    check([Case(task, arrays_of(task, 3, {}), isa=isas()[0])], LOOSE)


def test_sums_of_many_terms_are_added_in_parts() -> None:
    x = tensor(1, 1100, 3, 3)
    y = expanding(x, 16, isas()[0])
    task = fused([y], y)
    check([Case(task, arrays_of(task, 4, {}), isa=isas()[0])], {"f32": 2e-3})


NETWORKS = {
    "expansion of 6, stride 2": (16, 96, 112, 3, 2),
    "expansion of 6": (24, 144, 56, 3, 1),
    "window of 5, stride 2": (24, 144, 56, 5, 2),
    "deep": (96, 576, 14, 3, 1),
}
MOST = {"expansion of 6, stride 2": 1.1, "expansion of 6": 1.1, "window of 5, stride 2": 1.2, "deep": 1.2}
"""The multiply-adds of a kernel, at most, over those of the product: rows multiplied twice, padding, partial panels."""


@pytest.mark.parametrize("name", NETWORKS)
def test_the_work(name: str) -> None:
    """The wide image is in no memory but tiles that fit a core's cache; few of its rows are multiplied twice."""
    channels, filters, size, kernel, stride = NETWORKS[name]
    on = cpu_target("avx512", 2)
    x = tensor(1, channels, size, size)
    sizes = sizes_of(channels, filters, size, kernel, stride)
    width = choose_expansion(sizes, {}, on).width
    y = expanding(x, filters, "avx512", [kernel] * 2, [stride] * 2, [kernel // 2] * 2, width=width)
    made = schedule(fused([y], y, {k: channels_last(*k.shape) for k in (x, y)}), on)
    assert f"expands={channels}" in made.note
    wide = filters * size * size
    assert sum(static_size(product(b.shape)) == wide for b in made.buffers) == (stride == 1)  # the result
    local = [s.buffer for s in walk_stmts(made.body) if isinstance(s, Allocate) and s.buffer.scope is Scope.LOCAL]
    assert local
    assert all(math.prod(static_size(n) or 0 for n in b.shape) * 4 <= on.l2 // 2 for b in local)
    assert wide * channels <= products(made) <= MOST[name] * wide * channels


def sizes_of(channels: int, filters: int, size: int, kernel: int, stride: int, batch: Dim = 1) -> ExpansionSizes:
    both = (kernel, kernel), (stride, stride), (kernel // 2, kernel // 2), (1, 1)
    return ExpansionSizes((batch, filters, size, size), channels, *both)


def test_the_choice_weighs_traffic_against_rows_that_are_multiplied_twice() -> None:
    on = cpu_target("avx512", 2)
    for network in NETWORKS.values():
        channels, filters, size, kernel, stride = network
        chosen = choose_expansion(sizes_of(channels, filters, size, kernel, stride), {}, on)
        assert chosen.width, chosen.reason
        assert chosen.reason.startswith("together: million cycles by the cost model: together ")
    # Few rows of a large image fit a core's cache, and products of many terms cost more than the memory that they save.
    deep = choose_expansion(sizes_of(256, 256, 448, 7, 1), {}, on)
    assert not deep.width
    assert deep.reason.startswith("apart: million cycles")
    wide = choose_expansion(sizes_of(16, 96, 4000, 3, 1), {}, on)
    assert wide.reason == "apart: the rows under a window do not fit a core's cache"


def test_sizes_that_are_not_known() -> None:
    on, n = cpu_target("avx512", 2), Var("n")
    assert choose_expansion(sizes_of(24, 144, 56, 3, 1, n), {n: 8}, on).width
    free = replace(sizes_of(24, 144, 56, 3, 1), image=(1, 144, n, 56))
    assert choose_expansion(free, {n: 56}, on).reason == "apart: the image's size is known only when the kernel runs"
    small = replace(sizes_of(24, 144, 2, 7, 1), padding=(0, 0))
    assert choose_expansion(small, {}, on).reason == "apart: the window is larger than the image"


def test_it_has_no_configurations_to_tune() -> None:
    y = expanding(tensor(1, 8, 9, 9), 32, "avx512")
    assert problem(fused([y], y), cpu_target("avx512", 2)) is None


def refusal(outputs: Node, config: DepthwiseConfig | ConvolutionConfig | None = None) -> str:
    with pytest.raises(ScheduleError) as refused:
        schedule_convolution(fused([outputs], outputs), cpu_target("avx512", 2), config)
    return str(refused.value)


def test_refused_products() -> None:
    x = tensor(1, 8, 9, 9)
    plain = convolution(x, tensor(32, 8, 1, 1), [1], [0], [1])

    def under_a_window(image: Node) -> Node:
        channels = static_size(image.shape[1])
        assert channels is not None
        weight = tensor(channels, 1, 3, 3, dtype=image.dtype)
        return marked(convolution(image, weight, [1], [1], [1], False, [0], channels))

    assert "not packed in panels" in refusal(under_a_window(plain))
    two = arithmetic.add(product_of(x, 32, "avx512"), product_of(x, 32, "avx512"))
    assert "more than one product" in refusal(under_a_window(two))
    free = product_of(tensor(1, 8, Var("rows"), 9), 32, "avx512")
    assert "known only when the kernel runs" in refusal(under_a_window(free))
    window = packed(
        convolution(x, tensor(32, 8, 3, 3), [1], [1], [1]), PackWeights(partial(packed_width, target=target()))
    )
    assert "does not compute the image" in refusal(under_a_window(window))
    narrow = product_of(tensor(1, 8, 9, 9, dtype=bf16), 32, "avx512")
    assert "not of f32" in refusal(under_a_window(narrow))


def test_refused_configurations() -> None:
    y = expanding(tensor(1, 8, 9, 9), 100, "avx512")
    width = panel_width_of(fused([y], y))
    assert "all columns in one block" in refusal(y, DepthwiseConfig(4, 9, 5, width))
    assert f"not whole panels of {width}" in refusal(y, DepthwiseConfig(4, 9, 9, width + 1))
    assert "9 rows of output, not 10" in refusal(y, DepthwiseConfig(4, 10, 9, width))
    assert "not for a depthwise convolution" in refusal(y, ConvolutionConfig(Tile(4, 2), 9, 9, 1))


def test_an_image_in_memory_is_copied() -> None:
    """The attribute alone changes nothing: a group that was taken apart has it still."""
    y = marked(convolution(tensor(1, 16, 9, 9), tensor(16, 1, 3, 3), [1], [1], [1], False, [0], 16))
    assert "expands" not in schedule(fused([y], y), target()).note
