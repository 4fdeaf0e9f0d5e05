"""Every template of the GPU, broken in known ways: the simulator notices what changes the kernel's behaviour."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from taskmap.graph.ops import activations, arithmetic, matmul
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import convolution
from taskmap.ir.evaluate import size_of
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import Target
from taskmap.ir.task import Task
from taskmap.ir.types import f16, f32
from taskmap.schedules import schedule
from taskmap.schedules.cuda.attention import schedule_attention
from taskmap.schedules.cuda.attention_engine import AttentionConfig
from taskmap.schedules.cuda.hopper import HopperConfig, schedule_hopper
from taskmap.schedules.cuda.matmul import schedule_product
from taskmap.schedules.cuda.matmul_config import MatmulConfig
from taskmap.schedules.cuda.product import find_product
from tests.schedules.cuda_running import cuda, source_of
from tests.schedules.graph_tasks import channels_last, fused, layer_norm, tensor
from tests.schedules.mutants import Mutant, hunt, mutants
from tests.schedules.random_tasks import random_array
from tests.schedules.running import TOLERANCE, Case
from tests.schedules.test_matmul import product

LIMITS = {**TOLERANCE, "f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}
EACH = 4
HARMLESS = ("predicate", "commit")
"""A predicate may guard what is masked again later, or what is in bounds anyway; a commit may join two groups that are
waited for together. Such mutants are equivalent: they are counted, but need not be caught."""

Schedule = Callable[[Task, Target], Kernel | None]


def by_product(make: Callable[..., Kernel], config: object) -> Schedule:
    def plan(task: Task, target: Target) -> Kernel:
        found = find_product(task)
        assert found is not None
        return make(found, config, target)

    return plan


def by_attention(config: AttentionConfig) -> Schedule:
    return lambda task, target: schedule_attention(task, target, config)


def a_matmul(m: int, n: int, k: int, form: str = "plain", dtype: object = f16) -> Task:
    return fused([product(form, m, n, k, dtype, "generic")])  # type: ignore[arg-type]


def an_epilogue() -> Task:
    y = matmul.mm(tensor(35, 72, dtype=f16), tensor(72, 24, dtype=f16))
    return fused([activations.relu(arithmetic.add(y, tensor(24, dtype=f16)))])


def an_attention(*, causal: bool) -> Task:
    q, k, v = (tensor(1, 2, 40, 16, dtype=f16) for _ in range(3))
    return fused([attention(q, k, v, causal=causal)])


def an_image() -> Task:
    x, w = tensor(2, 32, 7, 6, dtype=f16), tensor(16, 32, 3, 3, dtype=f16)
    y = convolution(x, w, [1], [1], [1])
    return fused([y], strides={n: channels_last(*n.shape) for n in (x, w, y)})


ARRIVED = re.compile(r"tm_mbarrier_wait\(full(, \d| \+ \d)")
"""A wait for what has arrived long ago: it ends a basic block for the assembler, and does nothing else."""

TEMPLATES: dict[str, tuple[Callable[[], Task], Schedule, str]] = {
    "threads": (
        lambda: a_matmul(17, 19, 37, dtype=f32),
        by_product(schedule_product, MatmulConfig("simt", 16, 16, 8, 16, 16)),
        "sm_80",
    ),
    "tensor cores": (
        lambda: a_matmul(35, 40, 200),
        by_product(schedule_product, MatmulConfig("mma_m16n8k16_f16_f32", 32, 32, 32, 16, 16, 3)),
        "sm_80",
    ),
    "tensor cores, turned": (
        lambda: a_matmul(35, 41, 160, "right"),
        by_product(schedule_product, MatmulConfig("mma_m16n8k16_f16_f32", 64, 16, 16, 32, 16, 2, group=2)),
        "sm_80",
    ),
    "tensor cores, epilogue": (
        an_epilogue,
        by_product(schedule_product, MatmulConfig("mma_m16n8k16_f16_f32", 16, 64, 64, 16, 32, 4)),
        "sm_80",
    ),
    "Hopper": (
        lambda: a_matmul(100, 72, 264),
        by_product(schedule_hopper, HopperConfig("wgmma_m64n64k16_f16_f32", 64, 64, 1, 2)),
        "sm_90a",
    ),
    "attention": (
        lambda: an_attention(causal=True),
        by_attention(AttentionConfig("mma_m16n8k16_f16_f32", 2, 32, 32, 2)),
        "sm_80",
    ),
    "attention by threads": (
        lambda: an_attention(causal=False),
        by_attention(AttentionConfig("simt", 2, 16, 16, 2)),
        "sm_80",
    ),
    "convolution": (an_image, schedule, "sm_80"),
    "rows": (lambda: fused(layer_norm(tensor(5, 260), 1, True)), schedule, "sm_80"),
    "pointwise": (lambda: fused([arithmetic.mul(tensor(7, 37), 2.0)]), schedule, "sm_80"),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_mutants_of_a_template_are_caught(template: str, record_property: Callable[[str, object], None]) -> None:
    make, plan, isa = TEMPLATES[template]
    task = make()
    kernel = plan(task, cuda(isa))
    assert kernel is not None
    cases = []
    for seed in range(3):
        chance = random.Random(seed)
        arrays = [random_array(chance, b.dtype, [size_of(n, {}) for n in b.shape]) for b in task.inputs]
        cases.append(Case(task, arrays))
    source = source_of(kernel, isa)
    lines = source.text.splitlines()
    tally = hunt(cases, kernel, source, LIMITS, EACH)
    record_property("mutants", f"{template}: {tally}")
    print(f"{template}: {tally}")
    missed = [m for m in tally.missed if m.kind not in HARMLESS and not ARRIVED.search(lines[m.line - 1])]
    assert not missed, "\n".join(map(str, missed))
    assert sum(tally.caught.values()) >= 0.6 * sum(tally.total.values()), tally


def test_every_kind_of_mutant() -> None:
    """What the mutants of a text are."""
    text = """\
void k(tm_global<float> p)
{
  tm_shared<float> s = tm_shared_at<float>(0);
  s[v ^ 3] = a < 3 ? p[v] : 0.0f;
  tm_cp_async_commit();
  tm_cp_async_wait<1>();
  tm_fence_proxy_async();
  tm_mbarrier_arrive(full + i % 3);
  tm_barrier();
  if (v < n) p[v] = s[(i + 1) % 2 * 8 + v];
}
"""
    found = {(m.kind, m.line, m.text.splitlines()[m.line - 1].strip()) for m in mutants(text)}
    assert found >= {
        ("index", 4, "s[v ^ 3] = a < 3 ? p[1 + v] : 0.0f;"),
        ("index", 4, "s[1 + v ^ 3] = a < 3 ? p[v] : 0.0f;"),
        ("swizzle", 4, "s[v + 0 * 3] = a < 3 ? p[v] : 0.0f;"),
        ("predicate", 4, "s[v ^ 3] = a < 3 || true ? p[v] : 0.0f;"),
        ("commit", 5, ""),
        ("wait", 6, "tm_cp_async_wait<2>();"),
        ("fence", 7, ""),
        ("arrival", 8, ""),
        ("barrier", 9, ""),
        ("predicate", 10, "if (true || v < n) p[v] = s[(i + 1) % 2 * 8 + v];"),
        ("stage", 10, "if (v < n) p[v] = s[(i + 1) % 1 * 8 + v];"),
    }
    assert str(Mutant("commit", 1, "\n")) == "commit in line 1: (nothing)"
