"""Attention on a GPU: the choice between the template of warps and that of warpgroups, and of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.access import require_count
from taskmap.schedules.cuda.attention.problem_view import AttentionTask, find_attention_task
from taskmap.schedules.cuda.attention.products import AttentionConfig
from taskmap.schedules.cuda.attention.split_keys import saves_time, tiles_of
from taskmap.schedules.cuda.attention.template import kernel_with, space, validity
from taskmap.schedules.cuda.hopper import attention as hopper_attention
from taskmap.schedules.cuda.hopper.attention import HopperAttentionConfig

_BLOCKS_PER_SM = 2
"""Blocks per multiprocessor that a GPU needs if blocks share keys: one waits for memory while another multiplies."""
_GUESS, _LENGTH = 64, 512
"""Sizes assumed for a symbolic batch or number of heads, and for a symbolic number of queries."""

Config = AttentionConfig | HopperAttentionConfig


def schedule_attention(task: Task, target: GpuTarget, config: Config | None = None) -> Kernel | None:
    """The template's kernel, or None for a task that is not anchored by an attention that it supports.

    Raises ScheduleError with the reason if ``config`` does not fit.
    """
    t = find_attention_task(task)
    if t is None:
        return None
    chosen = config or choose(t, target)
    if chosen is None:
        return None
    reason = why_not(t, chosen, target)
    if reason is not None:
        raise ScheduleError(f"{task.name!r} cannot be computed as {chosen}", why=f"{reason}.")
    require_count(task, task.outputs, t.a.stage.shape)
    if isinstance(chosen, HopperAttentionConfig):
        return hopper_attention.schedule_hopper_attention(t, chosen)
    return kernel_with(t, chosen)


def why_not(t: AttentionTask, c: Config, target: GpuTarget) -> str | None:
    """The reason why ``c`` cannot compute ``t`` on ``target``, or None if it can."""
    return hopper_attention.validity(t, c, target) if isinstance(c, HopperAttentionConfig) else validity(t, c, target)


def choose(t: AttentionTask, target: GpuTarget) -> Config | None:
    """The default configuration: the largest tile that fills the GPU, by warpgroups if they support it; else the
    smallest, whose keys several blocks share; None if none fits."""
    fitting: list[Config] = [c for c in every(t, target) if why_not(t, c, target) is None]
    batch, heads = (static_size(d) or _GUESS for d in (t.a.stage.shape[0], t.heads))
    rows = static_size(t.rows) or _LENGTH
    for c in fitting:
        if batch * heads * -(-rows // c.queries) >= target.cores:
            return c
    smallest = min(fitting, key=lambda c: c.queries, default=None)
    return next(shared_by_blocks(t, target, fitting), smallest)


def shared_by_blocks(t: AttentionTask, target: GpuTarget, fitting: Sequence[Config]) -> Iterator[AttentionConfig]:
    """The smallest tiles of queries, split until every multiprocessor has two blocks, with the largest tiles of keys
    first: first those of which each block has two, so that one is copied while the other is computed, then those of
    which it has one."""
    least = min((c.queries for c in fitting), default=0)
    keys = static_size(t.a.keys)
    smallest = [c for c in fitting if isinstance(c, AttentionConfig) and c.queries == least]
    for share_of in (2, 1):
        for c in sorted(smallest, key=lambda c: -c.keys):
            count = tiles_of(t, c)
            if count is None or keys is None:
                continue
            tiles = -(-keys // c.keys)
            most = tiles // -(-_BLOCKS_PER_SM * target.cores // count)
            if most < share_of:
                continue
            found = replace(c, split=-(-tiles // most))
            if found.split > 1 and saves_time(t, found) and validity(t, found, target) is None:
                yield found


def every(t: AttentionTask, target: GpuTarget) -> list[Config]:
    """Configurations of all templates, the most promising first; those of warpgroups only if these are not mostly
    idle."""
    queries = static_size(t.a.queries) or _LENGTH
    of_warpgroups = [c for c in hopper_attention.space(t, target) if queries * 2 > c.queries]
    return [*of_warpgroups, *space(t, target)]
