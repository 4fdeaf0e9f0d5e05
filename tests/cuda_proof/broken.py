"""The kernels that the mutation test breaks: every GPU template, with the rules by which a mistake in it changes
nothing. Sizes of different axes differ, so that a rule can name an axis by its size."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from taskmap.graph.ops import (
    activations,
    arithmetic,
    gather,
    join,
    matmul,
    pooling,
    reductions,
    scatter,
    softmax,
    views,
)
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import convolution
from taskmap.ir.interp.definitions import size_of
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f16, f32, i8, i32, i64
from taskmap.schedules import schedule
from taskmap.schedules.common.row_domain import find_contiguous_rows
from taskmap.schedules.cuda.attention.products import AttentionConfig
from taskmap.schedules.cuda.hopper.attention import HopperAttentionConfig
from taskmap.schedules.cuda.hopper.matmul import HopperConfig
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.rows.config import RowConfig
from taskmap.schedules.cuda.rows.template import schedule_rows
from taskmap.schedules.cuda.select_attention import schedule_attention
from taskmap.schedules.cuda.select_matmul import schedule_config
from tests.cuda_proof.mutations import Rule
from tests.cuda_proof.proving import RUNS
from tests.cuda_proof.subjects import integers
from tests.schedules.graph_tasks import channels_last, fused, layer_norm, matrix_product, tensor
from tests.schedules.random_tasks import random_array
from tests.schedules.running import Case

Plan = Callable[[Task, GpuTarget], Kernel | None]


NOTHING = Rule(
    "limit", r"zfill_\d+\(.* \? \d+ : 0\)", "where the limit would take hold, 0 bytes are copied, and none is read"
)
CLEARED = Rule(
    "predicate",
    "",
    "every thread clears the counter that one thread would",
    r"thread < 1",
    then=r"tm_atomic_exch_i32\(.*, 0\)",
)


@dataclass(frozen=True, slots=True)
class Breakable:
    """A kernel to break: its task, its schedule, the architecture, and the rules for it."""

    make: Callable[[], Task]
    plan: Plan
    isa: str = "sm_80"
    own_rules: tuple[Rule, ...] = ()
    infinite: tuple[int, ...] = (0, 1)
    ties: bool = False
    indices: int = 23

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Its own, and those of every kernel."""
        return *self.own_rules, NOTHING, CLEARED

    def cases(self, task: Task) -> list[Case]:
        """One for each way to run: random arrays, in the last case with an infinity at the end of the inputs numbered
        ``infinite``, or (``ties``) few different values in the last cases, and a NaN. i64 inputs are below ``indices``.

        If a sum runs beyond its end, an operand that should have been 0 shows, because it makes infinity times 0.
        """
        found = []
        for seed in range(len(RUNS)):
            chance = random.Random(seed)
            arrays = [random_array(chance, b.dtype, [size_of(n, {}) for n in b.shape]) for b in task.inputs]
            arrays = [
                np.abs(a) % self.indices if b.dtype == i64 else a for b, a in zip(task.inputs, arrays, strict=True)
            ]
            arrays = [np.round(a * 2) if self.ties and seed > 1 else a for a in arrays]
            if seed == len(RUNS) - 1:
                for n, (b, a) in enumerate(zip(task.inputs, arrays, strict=True)):
                    if b.dtype.is_float and (self.ties or n in self.infinite):
                        a.reshape(-1)[-1] = np.nan if self.ties else np.inf
            found.append(Case(task, arrays))
        return found


def edge(*sizes: int) -> tuple[Rule, ...]:
    """Rows and columns beyond the product are read at a clamped place, multiplied, and not written."""
    ends = "|".join(map(str, sizes))
    why = "rows and columns beyond the product are read at a clamped place, and never written"
    part = rf"[^&]* < (?:{ends})(?: && [^&]* < (?:{ends}))*"
    return Rule("predicate", "", why, part), Rule("condition", "", why, part)


ZEROED = "beyond the sum the other factor is 0 as well, and no integer times 0 is anything else"
"""A rule of integers only: infinity times 0 is not 0."""

LAST_STEP = Rule(
    "predicate", r"if \(step \+ 1 < ", "beyond the last step zeros are fetched, into a stage that nobody reads any more"
)


def by_product(config: MatmulConfig | HopperConfig) -> Plan:
    """The product template with a configuration."""

    def plan(task: Task, target: GpuTarget) -> Kernel:
        found = find_product(task)
        assert found is not None
        return schedule_config(found, config, target)

    return plan


def by_attention(config: AttentionConfig | HopperAttentionConfig) -> Plan:
    """The attention template with a configuration."""
    return lambda task, target: schedule_attention(task, target, config)


def by_rows(config: RowConfig) -> Plan:
    """The rule for rows with a configuration."""

    def plan(task: Task, target: GpuTarget) -> Kernel:
        rows = find_contiguous_rows(task)
        assert rows is not None
        return schedule_rows(task, rows, target, config)

    return plan


def a_product(m: int, n: int, k: int, form: str = "plain", dtype: object = f16) -> Callable[[], Task]:
    """A product alone."""
    return lambda: fused([matrix_product(form, m, n, k, dtype, 2)])  # type: ignore[arg-type]  # a DType


def with_epilogue() -> Task:
    """A product with a bias and an activation."""
    y = matrix_product("plain", 35, 72, 88, f16)
    return fused([activations.relu(arithmetic.add(y, tensor(72, dtype=f16)))])


def with_prologue() -> Task:
    """A product with a prologue."""
    return fused([matmul.mm(activations.relu(tensor(100, 520, dtype=f16)), tensor(520, 72, dtype=f16))])


def an_attention(*, causal: bool, keys: int = 40, shared: int = 2, depth: int = 16) -> Callable[[], Task]:
    """Two heads of 40 queries, of ``depth`` elements."""

    def make() -> Task:
        q = tensor(1, 2, 40, depth, dtype=f16)
        k, v = (tensor(1, shared, keys, depth, dtype=f16) for _ in range(2))
        return fused([attention(q, k, v, causal=causal)])

    return make


def a_decode() -> Task:
    """Three queries of four heads, which share keys by pairs."""
    q = tensor(1, 4, 3, 16, dtype=f16)
    k, v = (tensor(1, 2, 56, 16, dtype=f16) for _ in range(2))
    return fused([attention(q, k, v)])


def an_image(groups: int = 1, filters: int = 16, channels: int = 32) -> Callable[[], Task]:
    """A convolution with the channels last."""

    def make() -> Task:
        x, w = tensor(2, channels, 7, 6, dtype=f16), tensor(filters, channels // groups, 3, 3, dtype=f16)
        y = convolution(x, w, [1], [1], [1], groups=groups)
        return fused([y], strides={n: channels_last(*n.shape) for n in (x, w, y)})

    return make


def a_pool() -> Task:
    """A maximum over windows, channels last."""
    x = tensor(1, 8, 9, 9)
    y = pooling.max_pool(x, 2, [3, 3], [2, 2], [1, 1])[0]
    return fused([y], strides={x: channels_last(1, 8, 9, 9), y: channels_last(1, 8, 5, 5)})


def a_scatter(dtype: DType, how: str, shape: tuple[int, ...], length: int) -> Callable[[], Task]:
    """Elements, or rows, at positions that are data."""

    def make() -> Task:
        x, indices = tensor(*shape, dtype=dtype), tensor(length, dtype=i64)
        source = tensor(length, *shape[1:], dtype=dtype)
        y = scatter.index_combine("index", x, 0, indices, source, how)
        return fused([y], inputs=(x, indices, source))

    return make


I8 = "mma_m16n8k32_i8_i32"
F16 = "mma_m16n8k16_f16_f32"
W16 = "wgmma_m64n64k16_f16_f32"
MASKED = Rule(
    "predicate", r"zfill_\d+\((keys|queries) ", "scores of keys beyond the last are masked; of queries, unused"
)
CAUSAL = Rule("predicate", r"-tm_inf\(\) :", "keys beyond the last come after every query, so causality masks them too")
WEIGHTLESS = Rule(
    "predicate",
    r"zfill_\d+\(values ",
    "an infinite value that no query sees makes NaN by definition; others, times 0, are 0",
)
"""For causal attention: in the tile of a query that sees all keys, the weights of those beyond the last are 0."""
UNMASKED = Rule(
    "predicate", r"if \(!\(\(?(start \+ )?block", "a tile without a masked key is left as it is by its masks"
)
UNWRITTEN = Rule(
    "limit", r"scores\[.*tm_min<int>\(first \+ i, 39\) <", "of queries beyond the last, no result is written"
)
TWICE = Rule("predicate", "", "threads without a part of their own write what others write", r"thread < \d+")
APART = tuple(
    Rule(
        kind,
        r"full(, \d| \+ \(?(turn|steps|own_steps|parts|\d))",
        "what is waited for has arrived: it only ends a basic block for the assembler",
    )
    for kind in ("barrier", "stage")
)
BEYOND = (
    Rule("stage", r"tm_ldmatrix_x4\(a, queries", "rows beyond the last are multiplied, and never read"),
    Rule("predicate", r"if \(i < 6\) tm_store\(partials", "rows beyond the last have a place, and are never read"),
)
ARRIVED = Rule(
    "barrier", "queries_full", "they have arrived: it only ends a basic block for the assembler", then="wgmma_wait<0>"
)
KEYS = tuple(
    Rule(kind, r"keys_empty", "values of a tile are given back after the keys of the next, and waited for before")
    for kind in ("stage", "count", "parity", "barrier", "arrival")
)
FENCED = Rule(
    "fence",
    "tm_wgmma_fence",
    "the product begun just before has a fence; registers themselves the simulator does not watch",
)
ZEROS = Rule("swizzle", r"tm_splat<2>\(tm_f16\(0", "a line of zeros is the same in any order")
MORE = Rule("registers", "setmaxnreg_inc", "registers that a kernel does not ask for only make it slower")
SHIFT = Rule(
    "stage", r" exchange\[|tm_cluster_load\(of_block,",
    "softmax does not depend on what is subtracted from a row: here, another maximum",
)  # fmt: skip
LARGEST = Rule(
    "lane",
    r"tm_shuffle_xor<32>\((max_1|both(_[1-3])?), ",
    "softmax does not depend on what is subtracted from a row: all take the first lane's maximum, of fewer elements",
)
MEAN = Rule(
    "lane", r"tm_shuffle_xor<32>\((sum_1|both(_[1-3])?), ",
    "all take the first lane's mean, of some elements, and the second pass adds what it is off by",
)  # fmt: skip
CORRECTED = Rule(
    "predicate", r"== tm_inf\(\) \? mean : mean \+ mean_1", "what a mean is corrected by is of its last places"
)
LAST_BEST = Rule("predicate", r"const float both_8 = ", "of the best of a row only the place is wanted")
LAST_BEST_PART = Rule("condition", r"const float both_8 = ", "of the best of a row only the place is wanted")
TAIL = Rule("predicate", r"if \(unit", "the loop over the rest of a vector is empty beyond the last vector")
EMPTY = Rule("predicate", r"if \(unit < 480\)", "threads beyond the last own a range without positions")

BREAKABLE: dict[str, Breakable] = {
    "product, threads": Breakable(
        a_product(17, 19, 37, dtype=f32), by_product(MatmulConfig("simt", 16, 16, 8, 16, 16)), "sm_80",
        (*edge(17, 19), LAST_STEP),
    ),
    "product, tensor cores": Breakable(
        a_product(35, 40, 200), by_product(MatmulConfig(F16, 32, 32, 32, 16, 16, 3)), "sm_80", edge(35, 40)
    ),
    "product, turned": Breakable(
        a_product(35, 41, 160, "right"), by_product(MatmulConfig(F16, 64, 16, 16, 32, 16, 2, group=2)), "sm_80",
        edge(35, 41),
    ),
    "product, batched": Breakable(
        a_product(24, 40, 72, "batched"), by_product(MatmulConfig(F16, 16, 32, 32, 16, 16, 3)), "sm_80", edge(24, 40)
    ),
    "product, epilogue": Breakable(
        with_epilogue, by_product(MatmulConfig(F16, 16, 64, 64, 16, 32, 4)), "sm_80", edge(35, 72)
    ),
    "product, split": Breakable(
        a_product(35, 40, 264), by_product(MatmulConfig(F16, 32, 32, 32, 16, 16, 3, split=3)), "sm_80", edge(35, 40)
    ),
    "product, registers": Breakable(
        a_product(37, 19, 41), by_product(MatmulConfig(F16, 32, 16, 32, 16, 16, 2)), "sm_80", (*edge(37, 19), LAST_STEP)
    ),
    "product, bytes": Breakable(
        lambda: fused([integers(35, 24, 144, i8, i8)]), by_product(MatmulConfig(I8, 32, 16, 64, 16, 16, 3)),
        "sm_80", (*edge(35, 24), *(Rule(kind, "zfill", ZEROED, r".* < 144") for kind in ("predicate", "condition"))),
    ),
    "Hopper": Breakable(
        a_product(100, 72, 264), by_product(HopperConfig(W16, 64, 64, 1, 2)), "sm_90a", APART
    ),
    "Hopper, split": Breakable(
        a_product(100, 72, 776), by_product(HopperConfig(W16, 64, 64, 1, 2, split=3)), "sm_90a", APART
    ),
    "Hopper, two groups": Breakable(
        a_product(136, 72, 520, "left"), by_product(HopperConfig(W16, 128, 64, 2, 3, group=2)), "sm_90a", (MORE, *APART)
    ),
    "Hopper, prologue": Breakable(
        with_prologue, by_product(HopperConfig(W16, 64, 64, 1, 3)), "sm_90a", (*edge(100, 72), *APART)
    ),
    "Hopper, convolution": Breakable(
        an_image(channels=64), by_product(HopperConfig(W16, 64, 64, 1, 3)), "sm_90a", (*edge(84, 16), *APART)
    ),
    "Hopper, tile after tile": Breakable(
        a_product(100, 136, 200), by_product(HopperConfig(W16, 64, 64, 1, 3, 2, persistent=True, boxed=True)),
        "sm_90a", (*edge(100, 136), ZEROS, *APART),
    ),
    "convolution": Breakable(an_image(), schedule, "sm_80", edge(84, 16)),
    "convolution, grouped": Breakable(an_image(2, 32), schedule, "sm_80", edge(84, 16)),
    "attention": Breakable(
        an_attention(causal=False, keys=56), by_attention(AttentionConfig(F16, 2, 32, 32, 2)), "sm_80",
        (MASKED, UNMASKED), (2,),
    ),
    "attention, causal": Breakable(
        an_attention(causal=True, shared=1), by_attention(AttentionConfig(F16, 2, 16, 16, 2)), "sm_80",
        (MASKED, CAUSAL, WEIGHTLESS, UNWRITTEN, UNMASKED), (),
    ),
    "attention, threads": Breakable(
        an_attention(causal=False, keys=56), by_attention(AttentionConfig("simt", 2, 16, 16, 1)), "sm_80",
        (MASKED, TWICE, UNMASKED), (2,),
    ),
    "attention, warpgroups": Breakable(
        an_attention(causal=False, keys=104, depth=64), by_attention(HopperAttentionConfig(1, 32)), "sm_90a",
        (*KEYS, FENCED, ARRIVED, UNMASKED), (2,),
    ),
    "attention, split": Breakable(
        a_decode, by_attention(AttentionConfig(F16, 1, 16, 16, 2, 2)), "sm_80",
        (MASKED, UNMASKED, *BEYOND), (2,),
    ),
    "rows": Breakable(lambda: fused(layer_norm(tensor(5, 260), 1, True)), schedule, "sm_80", (MEAN, CORRECTED)),
    "rows, several warps": Breakable(
        lambda: fused([softmax.softmax(tensor(5, 260), 1)]), by_rows(RowConfig(128, 1, 0)), "sm_80",
        (SHIFT, LARGEST), (),
    ),
    "rows, extreme": Breakable(
        lambda: fused([reductions.argmax(tensor(5, 260), 1)]), by_rows(RowConfig(32, 1, 9)), "sm_80",
        (LAST_BEST, LAST_BEST_PART), ties=True,
    ),
    "rows, several blocks": Breakable(
        lambda: fused([reductions.sum_(tensor(5, 1300), [1])]), by_rows(RowConfig(64, 1, 0, parts=3))
    ),
    "rows, a cluster": Breakable(
        lambda: fused([softmax.softmax(tensor(3, 260), 1)]), by_rows(RowConfig(32, 1, 5, parts=2, cluster=True)),
        "sm_90a", (SHIFT, LARGEST), (),
    ),
    "rows, side by side": Breakable(lambda: fused([reductions.sum_(tensor(300, 37), [0])]), schedule),
    "scatter, owners": Breakable(
        a_scatter(f32, "sum", (23, 40), 17), schedule, "sm_80", (EMPTY,), ()
    ),
    "scatter, shared memory": Breakable(a_scatter(i32, "sum", (601,), 1021), schedule, indices=601),
    "scatter, the last": Breakable(a_scatter(i32, "last", (601,), 1021), schedule, indices=601),
    "join": Breakable(lambda: fused([arithmetic.mul(join.cat([tensor(5, 24), tensor(5, 17)], 1), 2.0)]), schedule),
    "pointwise": Breakable(lambda: fused([arithmetic.mul(tensor(7, 37), 2.0)]), schedule, "sm_80", (TAIL,)),
    "pooling": Breakable(a_pool, schedule),
    "gather": Breakable(lambda: fused([gather.embedding(tensor(23, 40), tensor(7, dtype=i64))]), schedule),
    "transpose": Breakable(
        lambda: fused([arithmetic.mul(views.permute(tensor(65, 70), (1, 0)), 2.0)]), schedule
    ),
    "transpose, vectors": Breakable(
        lambda: fused([arithmetic.mul(views.permute(tensor(72, 120, dtype=f16), (1, 0)), 2.0)]), schedule
    ),
}  # fmt: skip
