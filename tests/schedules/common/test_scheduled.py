"""The result of scheduling names the template, the configuration and the next attempt."""

from __future__ import annotations

import pytest

from taskmap.ir.construct import cast, index
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Buffer, Reduce, Var
from taskmap.ir.target import cpu_target, cuda_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import f16, f32
from taskmap.schedules import problem, schedule, scheduled
from taskmap.schedules.cuda.matmul.config import MatmulConfig

GPU, CPU = cuda_target("sm_80"), cpu_target("avx512", 2)


def product() -> Task:
    a, b, c = Buffer("a", f16, (2048, 1024)), Buffer("b", f16, (1024, 2048)), Buffer("c", f32, (2048, 2048))
    i, j, s = Var("i"), Var("j"), Var("s")
    body = Reduce("sum", ((s, index(1024)),), cast(a[i, s], f32) * cast(b[s, j], f32), f32)
    return Task("mm", (a, b), (Stage(c, (i, j), body, "mm"),), (c,), ())


def doubled() -> Task:
    a, c = Buffer("a", f32, (64, 64)), Buffer("c", f32, (64, 64))
    i, j = Var("i"), Var("j")
    return Task("twice", (a,), (Stage(c, (i, j), a[i, j] * 2.0),), (c,), ())


def test_a_product_has_a_next_configuration() -> None:
    first = scheduled(product(), GPU)
    assert (first.template, first.next_attempt) == ("cuda.matmul", 1)
    assert isinstance(first.config, MatmulConfig)
    assert str(first.config) in first.kernel.note
    second = scheduled(product(), GPU, attempt=1)
    assert second.next_attempt == 2
    assert second.config != first.config


def test_a_rule_has_one_configuration() -> None:
    found = scheduled(doubled(), GPU)
    assert (found.template, found.config, found.next_attempt) == ("cuda.pointwise", None, None)
    with pytest.raises(ScheduleError, match="is the only configuration of 'twice'"):
        scheduled(doubled(), GPU, attempt=1)


def test_a_configuration_that_is_given_is_named() -> None:
    found = problem(product(), GPU)
    assert found is not None
    config = found.configs(GPU)[-1]
    assert scheduled(product(), GPU, config).config == config


def test_on_a_cpu_the_template_is_named() -> None:
    assert scheduled(doubled(), CPU).template == "cpu.pointwise"
    assert scheduled(product(), CPU).template == "cpu.matmul"
    assert schedule(doubled(), CPU).note == scheduled(doubled(), CPU).kernel.note
