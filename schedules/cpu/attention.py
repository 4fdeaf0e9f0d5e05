"""The attention template: softmax(scores) v without ever holding all scores, in blocks of queries and keys.

    parallel over (batch, head, block of queries):
        for each block of keys:
            transpose the keys
            for each tile of queries:
                s = scores of the tile             microkernel
                m' = max(m, rows of s);  p = exp(s - m');  rescale what was summed by exp(m - m')
                l = l + sum of p;  o = o + p v     microkernel
        out = o / l

A tile's scores stay in the first-level cache. Where one block holds all keys, a tile is finished at once and nothing
is rescaled. What a score is (scale, mask, causality) comes from the operator's definition; the template only supplies
the product q k. Methods: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
"FlashAttention" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, constant_dim, index, minimum, product
from taskmap.ir.nodes import Dim, Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.schedules.access import require_count
from taskmap.schedules.cpu.attention_block import QueryBlock
from taskmap.schedules.cpu.attention_match import Attention, find_attention
from taskmap.schedules.cpu.loops import parallel_grid
from taskmap.schedules.cpu.microkernel import Tile, choose_tile
from taskmap.schedules.values import Values

_QUERIES = 256
_UNKNOWN_QUERIES = 64
_FEW_QUERIES = 32
_KEYS = 256
_STATE_BYTES = 512 << 10
"""What a block's keys and sums may take of the stack."""
_IDLE = 1.1
"""How much longer than its share the busiest core may work before queries are cut further: each cut transposes the keys
again."""


def schedule_attention(task: Task, target: Target) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by attention or not in f32, f16 or bf16."""
    found = find_attention(task)
    if found is None or found.dot.dtype != f32:
        return None
    require_count(task, task.outputs, found.stage.shape)
    return _Template(task, found, target, default(found, target)).kernel()


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """``queries`` and ``keys`` of a block, and the register tile of both products."""

    queries: int
    keys: int
    tile: Tile

    def __str__(self) -> str:
        return f"queries={self.queries}, keys={self.keys}, tile={self.tile.rows}x{self.tile.vectors}v"


def default(a: Attention, target: Target) -> AttentionConfig:
    """The configuration that is used untuned."""
    lanes = target.lanes(4)
    queries, keys = constant_dim(a.queries), constant_dim(a.keys)
    longest = max(lanes, min(_KEYS, _STATE_BYTES // (4 * (a.depth + _UNKNOWN_QUERIES)) // lanes * lanes))
    even = min(128, longest) if keys is None else -(-keys // -(-keys // longest))
    rows = _UNKNOWN_QUERIES if queries is None else _queries(a, queries, target)
    tile = choose_tile(rows, -(-even // lanes) * lanes, target, lanes)
    if queries is not None and rows < queries:
        rows = -(-rows // tile.rows) * tile.rows
    return AttentionConfig(rows, even, tile)


def _queries(a: Attention, queries: int, target: Target) -> int:
    """Queries of a block: as many as keep all cores busy."""
    heads = constant_dim(product(a.stage.shape[:2])) or 1
    rows = queries
    for parts in range(-(-queries // _QUERIES), -(-queries // _FEW_QUERIES) + 1):
        rows = -(-queries // parts)
        tasks = heads * -(-queries // rows)
        if -(-tasks // target.cores) * target.cores <= tasks * _IDLE:
            break
    return rows


@dataclass(slots=True)
class _Template:
    task: Task
    a: Attention
    target: Target
    config: AttentionConfig
    b: Builder = field(default_factory=Builder)

    def kernel(self) -> Kernel:
        a, b, rows, keys = self.a, self.b, self.config.queries, self.config.keys
        values = Values(self.task, b)
        batch, heads, queries, _ = a.stage.shape
        extents = [batch, heads, ceil_div(queries, rows)]
        with parallel_grid(b, ["batch", "head", "block"], extents, values, True, 1 << 62) as (n, h, block):
            inside = values.nested()
            first = inside.simplifier(block * rows)
            blocks: Dim = ceil_div(a.keys, keys)
            step = QueryBlock(self.task, a, self.target, self.config.tile, b, n, h, first, rows, keys, blocks == 1)
            step.allocate()
            if a.causal:
                reach = inside.simplifier(minimum(index(blocks), (first + (rows + keys - 1)) // keys))
                blocks = b.let("blocks", reach)
            with b.loop("keys", index(blocks)) as kb:
                inside.bind(kb, ceil_div(a.keys, keys))
                step.meet(inside.nested(), inside.simplifier(kb * keys))
            if not step.single:
                step.finish(inside, index(0), rows)
        note = f"cpu.attention({self.config})"
        buffers = (*self.task.inputs, *self.task.outputs)
        return Kernel(self.task.name, buffers, self.task.outputs, self.task.dims, b.body(), note=note)
