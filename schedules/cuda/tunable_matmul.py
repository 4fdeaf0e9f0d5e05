"""A matrix product as tuning sees it on a GPU: its canonical form, with the configurations of the GPU's templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from taskmap.ir.errors import ScheduleError
from taskmap.ir.nodes import Kernel, Var
from taskmap.ir.target import GpuTarget
from taskmap.ir.task import Task
from taskmap.schedules.common.matmul_form import MatmulForm
from taskmap.schedules.common.space import Config, Template, unreadable
from taskmap.schedules.cuda.dispatch import is_thin
from taskmap.schedules.cuda.matmul.problem_view import Gemm, find_product
from taskmap.schedules.cuda.select_matmul import Config as ProductConfig
from taskmap.schedules.cuda.select_matmul import choose, estimate, schedule_config, space, why_not


@dataclass(frozen=True, slots=True)
class CudaMatmulProblem(MatmulForm):
    """out[b, i, j] = sum over s of A[b, i, s] · B[b, s, j]; the fields are those of the form."""

    template = "cuda.matmul"

    def default(self, target: GpuTarget) -> ProductConfig:
        """The untuned configuration."""
        return choose(_product(self), target)

    def configs(self, target: GpuTarget) -> tuple[Config, ...]:
        """At most 200 valid configurations and the default, which comes first."""
        return tuple(dict.fromkeys([self.default(target), *space(_product(self), target)]))

    def cycles(self, config: Config, target: GpuTarget) -> float:
        """Cycles by the estimate."""
        return self.seconds(config, target) * target.clock

    def seconds(self, config: Config, target: GpuTarget) -> float:
        """Seconds by the estimate."""
        return estimate(_product(self.likely), config, target)  # type: ignore[arg-type]

    def read(self, text: str, target: GpuTarget) -> ProductConfig | None:
        """The configuration with this text, if it is valid on ``target``, else None."""
        return next((c for c in self.configs(target) if str(c) == text), None)  # type: ignore[return-value]

    def kernel(self, task: Task, config: Config, target: GpuTarget) -> Kernel:
        """The template's kernel. Raises ScheduleError if ``config`` does not fit."""
        found = find_product(task)
        if found is None:
            raise ScheduleError(f"{task.name!r} is not a matrix product")
        reason = why_not(found, config, target)  # type: ignore[arg-type]
        if reason is not None:
            raise ScheduleError(f"{task.name!r} cannot be computed with {config}", why=f"{reason}.")
        return schedule_config(found, config, target)  # type: ignore[arg-type]


def tunable() -> tuple[Template, ...]:
    """The GPU's templates with tunable configurations."""
    return (Template(CudaMatmulProblem.template, find_cuda_matmul, read_cuda_matmul),)


@lru_cache(maxsize=64)
def _product(p: MatmulForm) -> Gemm:
    found = find_product(p.task())
    if found is None:
        raise ScheduleError(f"{p.shapes} {p.dtypes} {p.layout} is not a product that the template supports")
    return found


def find_cuda_matmul(task: Task, target: GpuTarget, hints: Mapping[Var, int]) -> CudaMatmulProblem | None:
    """The product that anchors a task, as ``MatmulForm.find`` says, if the GPU's matmul template takes it."""
    found = CudaMatmulProblem.find(task, hints)
    product = None if found is None or found.packed else find_product(task)
    return None if product is None or is_thin(product) else found


def read_cuda_matmul(shapes: str, dtypes: str, layout: str) -> CudaMatmulProblem:
    """The problem that these texts describe. Raises ScheduleError if they describe none."""
    found = CudaMatmulProblem.parse(shapes, dtypes, layout)
    if found.packed:
        raise unreadable(CudaMatmulProblem.template, f"{shapes} {dtypes} {layout}")
    if is_thin(_product(found)):
        raise ScheduleError(
            f"a product of {shapes} has no configurations on a GPU",
            why="one of a single row or column is computed as reductions along rows.",
        )
    return found
