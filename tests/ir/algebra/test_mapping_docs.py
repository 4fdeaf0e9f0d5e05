"""docs/task-mappings.md: its examples run, and its pictures are those of draw()."""

import doctest
from pathlib import Path

import pytest

from taskmap.ir.algebra.mapping import TaskMapping, repeat, spatial

DOCS = Path(__file__).parents[3] / "docs"


def test_the_examples_of_the_page() -> None:
    failed, tried = doctest.testfile(str(DOCS / "task-mappings.md"), module_relative=False, encoding="utf-8")
    assert tried > 40
    assert failed == 0


@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        ("accumulator", repeat(2, 1) * spatial(8, 4) * repeat(1, 2)),
        ("operand_b", repeat(2, 1) * spatial(4, 8, order=(1, 0)) * repeat(2, 1)),
    ],
)
def test_the_pictures_of_the_page(name: str, mapping: TaskMapping, request: pytest.FixtureRequest) -> None:
    path = DOCS / "images" / f"{name}.svg"
    picture = mapping.draw(slots=True)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        picture.save(path)
    assert path.read_text(encoding="utf-8") == picture.svg()
