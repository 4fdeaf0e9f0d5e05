"""Properties of every tunable problem, for any template."""

from taskmap.ir.target import Target
from taskmap.schedules import Problem, problem, read_problem, space_of


def check_text(p: Problem, target: Target) -> None:
    """The problem equals the one read from its text, and the one found in its task, with known or hinted sizes."""
    assert read_problem(p.template, p.shapes, p.dtypes, p.layout) == p
    task = p.task()
    assert problem(task, target, dict(zip(task.dims, p.dims(), strict=True))) == p
    assert (problem(task, target) is None) == bool(p.dims())


def check_space(p: Problem, target: Target) -> None:
    """Its space has at most 200 configs, contains the default, is ordered by cost; configs read back from text."""
    found = space_of(p, target)
    assert 1 <= len(found.configs) <= 200
    assert list(found.cycles) == sorted(found.cycles)
    assert found.default in found.configs
    assert all(p.read(str(c), target) == c for c in found.configs if c != found.default)
