"""The attention template: softmax(scores) v in blocks of queries and keys, without ever storing all scores.

    parallel over (batch, head, block of queries):
        for each block of keys:
            transpose the keys
            for each tile of queries:
                s = scores of the tile             microkernel
                m' = max(m, rows of s);  p = exp(s - m');  rescale what was summed by exp(m - m')
                l = l + sum of p;  o = o + p v     microkernel
        out = o / l

A tile's scores stay in the first-level cache. If one block holds all keys, a tile is finished at once and nothing is
rescaled. Few queries read keys in place (``few_queries``). Products of bf16 run on tile registers where the target has
them (``tile_block``), or on dot products (``dot_block``). The definition of a score (scale, mask, causality) comes from
the operator; the template only supplies the product q k. Methods: Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018); Dao et al., "FlashAttention" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskmap.ir.builder import Builder
from taskmap.ir.construct import ceil_div, index, minimum, product, static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.loops import parallel_grid, worth_sharing
from taskmap.ir.nodes import Dim, Kernel
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.schedules.common.access import require_count
from taskmap.schedules.common.attention_match import Attention, find_attention
from taskmap.schedules.common.inline import Inliner
from taskmap.schedules.common.stack_limit import STACK_BYTES, local_bytes
from taskmap.schedules.cpu.attention.config import AttentionConfig, default, validity
from taskmap.schedules.cpu.attention.cost import Lengths, reads_rows
from taskmap.schedules.cpu.attention.dot_block import DotQueryBlock, attention_dots
from taskmap.schedules.cpu.attention.few_queries import FewQueriesBlock
from taskmap.schedules.cpu.attention.query_block import QueryBlock
from taskmap.schedules.cpu.attention.tile_block import TileQueryBlock, attention_unit, tile_config
from taskmap.schedules.cpu.matmul.amx_tile import TileUnit
from taskmap.schedules.cpu.matmul.dot_tile import DotProduct
from taskmap.schedules.cpu.support.kernels import kernel_of

_SHARED_FROM = 40_000
"""The least number of products for which several threads are faster than one."""


def schedule_attention(task: Task, target: CpuTarget, config: AttentionConfig | None = None) -> Kernel | None:
    """The template's kernel with ``config``, by default the untuned one; None for a task that is not anchored by
    attention or not in f32, f16 or bf16. Raises ScheduleError with the reason if ``config`` does not fit."""
    found = find_attention(task)
    if found is None or found.dot.dtype != f32:
        return None
    require_count(task, task.outputs, found.stage.shape)
    unit = attention_unit(found, target) if config is None else None
    if unit is not None:
        return _Template(task, found, target, tile_config(found, unit, target), unit).kernel()
    dots = attention_dots(found, target) if config is None else None
    if dots is not None:
        made = _Template(task, found, target, dots.config, dots=dots.product).kernel()
        if local_bytes(made) <= STACK_BYTES:
            return made
    if config is None:
        config = default(found, target)
    elif reason := validity(config, found, target):
        raise ScheduleError(f"{task.name!r} cannot be computed with {config}", why=f"{reason}.")
    return _Template(task, found, target, config).kernel()


@dataclass(slots=True)
class _Template:
    task: Task
    a: Attention
    target: CpuTarget
    config: AttentionConfig
    unit: TileUnit | None = None
    dots: DotProduct | None = None
    b: Builder = field(default_factory=Builder)

    def kernel(self) -> Kernel:
        a, b, rows, keys = self.a, self.b, self.config.queries, self.config.keys
        values = Inliner(self.task, b)
        batch, heads, queries, _ = a.stage.shape
        extents = [batch, heads, ceil_div(queries, rows)]
        shared = worth_sharing(product([batch, heads, queries, a.keys, a.depth + a.width]), _SHARED_FROM)
        with parallel_grid(b, ["batch", "head", "block"], extents, values.simplifier, shared, 1 << 62) as (n, h, block):
            inside = values.nested()
            first = inside.simplifier(block * rows)
            blocks: Dim = ceil_div(a.keys, keys)
            shape = (rows, keys, blocks == 1)
            unit, dots = self.unit, self.dots
            where = (self.task, a, self.target, self.config.tile, b, n, h, first)
            step: QueryBlock
            if unit is not None:
                step = TileQueryBlock(*where, *shape, unit=unit)
                b.invoke(unit.tiles.configure)
            elif dots is not None:
                step = DotQueryBlock(*where, *shape, product=dots)
            else:
                step = QueryBlock(*where, *shape)
                few = static_size(queries) is not None and reads_rows(Lengths.of(a), self.target)
                if few and not step.keys_are_columns():
                    step = FewQueriesBlock(*where, *shape)
            step.allocate()
            if a.causal:
                reach = inside.simplifier(minimum(index(blocks), (first + (rows + keys - 1)) // keys))
                blocks = b.let("blocks", reach)
            with b.loop("keys", index(blocks)) as kb:
                inside.bind(kb, ceil_div(a.keys, keys))
                step.attend(inside.nested(), inside.simplifier(kb * keys))
            if not step.single:
                step.finish(inside, index(0), rows)
            if unit is not None:
                b.invoke(unit.tiles.release)
        found = self.unit.tiles.product if self.unit else self.dots.instruction if self.dots else None
        by = "" if found is None else f", by={found.name}"
        return kernel_of(self.task, b, f"cpu.attention({self.config}{by})")
