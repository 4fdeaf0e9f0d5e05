"""Weights of products in panels: of a plain product, and of a batch of one, which einsum makes of a plain product."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from taskmap.graph.nodes import Graph, InputNode
from taskmap.graph.ops.matmul import bmm, mm
from taskmap.graph.ops.views import permute
from taskmap.graph.passes.weight_packing import PACK, PackWeights
from taskmap.graph.reference import run
from taskmap.ir.nodes import Dim
from taskmap.ir.target import CpuTarget, cpu_target
from taskmap.ir.types import DType, bf16, f32
from taskmap.schedules import copies_columns, packed_filled, packed_together

WIDTH = 16


def width(m: Dim, n: Dim, dtype: DType, **more: object) -> int:
    """Panels of 16 columns, for any product."""
    return WIDTH


def product(batch: int) -> Graph:
    """x [batch, 20, 96] times a constant [batch, 80, 96], whose rows are the product's columns."""
    shapes = (batch, 20, 96), (batch, 80, 96)
    inputs = [InputNode((), shape, f32, i) for i, shape in enumerate(shapes)]
    return Graph(inputs, [bmm(inputs[0], permute(inputs[1], (0, 2, 1)))], constant_inputs=frozenset([1]))


@pytest.mark.parametrize(("batch", "packs"), [(1, 1), (2, 0)])
def test_a_batch_of_one_shares_its_weight_like_a_plain_product(batch: int, packs: int) -> None:
    """Without panels each vector of the weight would be gathered from as many lines as it has lanes."""
    graph = product(batch)
    made = PackWeights(width).run(graph)
    packed = [n for n in made.nodes() if n.op == PACK]
    assert [n.shape[-1] for n in packed] == [WIDTH] * packs
    rng = np.random.default_rng()
    arrays = [rng.standard_normal([int(str(d)) for d in n.shape]).astype(np.float32) for n in graph.inputs]
    (want,), (got,) = run(graph, arrays), run(made, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got, arrays[0].astype(float) @ arrays[1].astype(float).swapaxes(1, 2), 1e-4, 1e-4)


@pytest.mark.parametrize(("rows", "terms", "turned", "packs"), [
    (128, 768, False, 0),  # copied where it is multiplied
    (128, 768, True, 0),  # transposed there
    (1, 768, True, 0),
    (2048, 2048, False, 1),  # many blocks of rows would each copy it
    (2048, 2048, True, 1),
])  # fmt: skip
def test_dot_products_copy_their_pairs_for_few_blocks_of_rows(rows: int, terms: int, turned: bool, packs: int) -> None:
    target = cpu_target("avx512", 2, l2=1 << 20, features=["avx512_bf16"])
    assert packs_of(target, rows, terms, turned) == packs


@pytest.mark.parametrize(("rows", "terms", "turned", "packs"), [
    (128, 768, False, 0),  # copied where it is multiplied
    (128, 768, True, 1),  # its columns are strided
    (2048, 768, False, 1),  # all rows of a would be read from afar for each panel
    (16, 768, False, 0),  # too few
])  # fmt: skip
def test_tiles_copy_the_columns_of_small_products_themselves(rows: int, terms: int, turned: bool, packs: int) -> None:
    target = cpu_target("avx512", 2, l2=2 << 20, features=["amx_tile", "amx_bf16"])
    assert packs_of(target, rows, terms, turned) == packs


def packs_of(target: CpuTarget, rows: int, terms: int, turned: bool) -> int:
    """The tensors that are packed for a product of bf16 activations with 96 columns; turned: b is stored by columns."""
    inputs = [
        InputNode((), shape, bf16, i) for i, shape in enumerate([(rows, terms), (96, terms) if turned else (terms, 96)])
    ]
    graph = Graph(inputs, [mm(inputs[0], permute(inputs[1], (1, 0)) if turned else inputs[1])])
    together, filled = (partial(of, target=target) for of in (packed_together, packed_filled))
    copies = partial(copies_columns, target=target)
    made = PackWeights(width, together=together, filled=filled, copies=copies).run(graph)
    return len([n for n in made.nodes() if n.op == "pack_groups"])
