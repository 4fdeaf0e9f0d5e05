"""A matrix product as tuning sees it on the CPU: its canonical form, with the configurations of the CPU's template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskmap.ir.construct import static_size
from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Kernel, Var
from taskmap.ir.target import CpuTarget
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.schedules.common.matmul_form import MatmulForm, anchor_of
from taskmap.schedules.common.space import Config
from taskmap.schedules.cpu.matmul.amx_operands import find_operands
from taskmap.schedules.cpu.matmul.config import Columns, MatmulConfig, Sizes, default, read_config, space, validity
from taskmap.schedules.cpu.matmul.cost import cycles
from taskmap.schedules.cpu.matmul.dot_tile import find_dots
from taskmap.schedules.cpu.matmul.template import schedule_matmul

__all__ = ["MatmulProblem", "find_matmul", "read_matmul"]

_ANY = Var("any")


@dataclass(frozen=True, slots=True)
class MatmulProblem(MatmulForm):
    """out[b, i, j] = sum over s of A[b, i, s] · B[b, s, j]; the fields are those of the form."""

    template = "cpu.matmul"

    @property
    def sizes(self) -> Sizes:
        """The sizes as configurations need them."""
        m, n, k, batch = (_ANY if name in self.free else getattr(self, name) for name in ("m", "n", "k", "batch"))
        k, batch = static_size(k), static_size(batch)
        columns = None
        if self.b == "n" and self.types[1] == f32:
            columns = Columns.NEIGHBOURS
        elif self.b == "k" and self.accumulate == f32:
            columns = Columns.APART
        return Sizes(m, n, k, batch, self.accumulate.bytes, packed=self.packed, columns=columns)

    def default(self, target: CpuTarget) -> MatmulConfig:
        """The untuned configuration."""
        return default(self.sizes, target)

    def configs(self, target: CpuTarget) -> tuple[Config, ...]:
        """At most 200 valid configurations, the default first."""
        return space(self.sizes, target)

    def cycles(self, config: Config, target: CpuTarget) -> float:
        """Cycles by the cost model."""
        assert isinstance(config, MatmulConfig)
        return cycles(config, self.likely.sizes, target)

    def read(self, text: str, target: CpuTarget) -> MatmulConfig | None:
        """The configuration with this text, if it is valid on ``target``, else None."""
        config = read_config(text)
        return config if config is not None and validity(config, self.sizes, target) is None else None

    def kernel(self, task: Task, config: Config, target: CpuTarget) -> Kernel:
        """The template's kernel. Raises ScheduleError if ``config`` does not fit."""
        assert isinstance(config, MatmulConfig)
        kernel = schedule_matmul(task, target, config)
        if kernel is None:
            raise ScheduleError(f"{task.name!r} is not a matrix product")
        return kernel


def find_matmul(task: Task, target: CpuTarget, hints: Mapping[Var, int]) -> MatmulProblem | None:
    """The product that anchors a task, as ``MatmulForm.find`` says; None for one on tile registers or dot products."""
    found = anchor_of(task)
    if found is not None and any(find(task, found[1], target) is not None for find in (find_operands, find_dots)):
        return None
    return MatmulProblem.find(task, hints)


read_matmul = MatmulProblem.parse
"""The problem of a record, from its canonical text."""
