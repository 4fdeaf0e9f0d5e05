"""The parts of a score: its scale, and the tiles in which no key is masked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from taskmap.graph.nodes import Node
from taskmap.graph.ops.attention import attention
from taskmap.ir.construct import compare, const, constant_value, index, select
from taskmap.ir.nodes import Expr
from taskmap.ir.types import boolean, f16, f32
from taskmap.schedules.common.attention_match import Attention, find_attention
from taskmap.schedules.cuda.attention.score import Score, score_of
from tests.schedules.graph_tasks import fused, tensor

NEVER = const(-math.inf, f32)


def an_attention(mask: Node | None = None, causal: bool = False, scale: float | None = None) -> Attention:
    q, k, v = (tensor(1, 2, 96, 64, dtype=f16) for _ in range(3))
    found = find_attention(fused([attention(q, k, v, mask, causal, scale)]))
    assert found is not None
    return found


@pytest.mark.parametrize("causal", [False, True])
def test_a_scale_is_taken_out(causal: bool) -> None:
    a = an_attention(causal=causal, scale=0.25)
    score = score_of(a)
    assert score.scale == 0.25
    assert score.masks is not None
    assert len(score.masks) == int(causal)


def test_a_scale_remains_where_something_is_added_or_the_order_turned() -> None:
    added = tensor(1, 2, 96, 96, dtype=f16)
    for a in (an_attention(added), an_attention(scale=-0.5), an_attention(scale=0.0)):
        score = score_of(a)
        assert score == Score(a.score, 1.0, None)


def test_a_mask_in_memory_is_read_for_every_tile() -> None:
    score = score_of(an_attention(tensor(1, 2, 96, 96, dtype=boolean), causal=True, scale=0.25))
    assert (score.scale, score.masks) == (0.25, None)


def windowed(a: Attention, before: int) -> Attention:
    """Scores of keys up to the query, within a window before it."""
    query = a.stage.axes[2]
    inside = compare("le", query, a.key + before)
    return replace(a, score=select(compare("lt", query, a.key), NEVER, select(inside, a.dot * const(2.0, f32), NEVER)))


@pytest.mark.parametrize("window", [None, 40])
def test_tiles_without_a_masked_key(window: int | None) -> None:
    a = an_attention(causal=True)
    score = score_of(a if window is None else windowed(a, window))
    seen = set()
    for first in range(0, 96, 16):
        for key in range(0, 96, 8):
            rows, keys = range(first, first + 16), range(key, key + 8)
            expected = all(j <= i and (window is None or i <= j + window) for i in rows for j in keys)
            tile: dict[object, tuple[Expr, Expr]] = {
                a.stage.axes[2]: (index(rows[0]), index(rows[-1])), a.key: (index(keys[0]), index(keys[-1])),
            }  # fmt: skip
            found = score.unmasked(tile)  # type: ignore[arg-type]  # axes are variables
            assert found is not None
            assert bool(constant_value(found)) == expected, (first, key)
            seen.add(expected)
    assert seen == {True, False}


def test_a_mask_that_no_bound_decides() -> None:
    a = an_attention()
    odd = replace(a, score=select(compare("lt", a.key % 3, a.stage.axes[2]), a.dot, NEVER))
    assert score_of(odd).unmasked({a.key: (index(0), index(3)), a.stage.axes[2]: (index(0), index(3))}) is None
