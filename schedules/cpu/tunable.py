"""The CPU's templates with tunable configurations."""

from __future__ import annotations

from taskmap.schedules.common.space import Template
from taskmap.schedules.cpu.attention.problem import find_attention_problem, read_attention
from taskmap.schedules.cpu.convolution.problem import find_convolution_problem, read_convolution
from taskmap.schedules.cpu.matmul.problem import find_matmul, read_matmul


def tunable() -> tuple[Template, ...]:
    """The templates, in the order in which they are asked."""
    return (
        Template("cpu.attention", find_attention_problem, read_attention),
        Template("cpu.convolution", find_convolution_problem, read_convolution),
        Template("cpu.matmul", find_matmul, read_matmul),
    )
