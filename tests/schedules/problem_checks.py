"""What holds of every problem that can be tuned, whichever template it is of."""

from taskmap.ir.target import Target
from taskmap.schedules import Problem, problem, read_problem, space_of


def check_text(p: Problem, target: Target) -> None:
    """The problem is what its text says, and what is found in its own task, where sizes are known or hinted at."""
    assert read_problem(p.template, p.shapes, p.dtypes, p.layout) == p
    task = p.task()
    assert problem(task, target, dict(zip(task.dims, p.dims(), strict=True))) == p
    assert (problem(task, target) is None) == bool(p.dims())


def check_space(p: Problem, target: Target) -> None:
    """Its space is no larger than 200, holds the default, is ordered by costs, and all else is read back from text."""
    found = space_of(p, target)
    assert 1 <= len(found.configs) <= 200
    assert list(found.cycles) == sorted(found.cycles)
    assert found.default in found.configs
    assert all(p.read(str(c), target) == c for c in found.configs if c != found.default)
