"""docs/add-an-operator.md works when followed literally: its operator runs in a copy of the checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.following import ROOT, add, blocks, copy_of_checkout, in_checkout, passed

PAGE = "add-an-operator.md"
NEEDED = ("tests/independent.py", "tests/graph/tracing.py", "tests/graph/importers/test_opinfo.py")
DEFINITION, LOWERING = "graph/ops/arithmetic.py", "graph/importers/torch/aten/arithmetic.py"


@pytest.mark.parametrize("script", ["try_definition.py", "try_operator.py"])
def test_the_programs_of_the_page_run(followed: Path, script: str) -> None:
    """The operator is evaluated by numpy, and compiled into one kernel with its neighbours."""
    (followed / script).write_text(block(script), encoding="utf-8")
    done = in_checkout(followed, [script])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_operator_is_native_on_samples_of_pytorch(followed: Path) -> None:
    """In single precision and in another type, which takes --long for half of the operators."""
    assert passed(followed, "ldexp", "--long", "tests/graph/importers/test_opinfo.py") == 2


def test_the_page_adds_an_operator_that_is_not_there(followed: Path) -> None:
    """Otherwise the page shows nothing new, and no test of it could fail."""
    files = (DEFINITION, LOWERING, "tests/graph/importers/test_opinfo.py")
    here, there = ([(folder / name).read_text(encoding="utf-8") for name in files] for folder in (ROOT, followed))
    assert [bool(re.search(r"\bldexp\b", text)) for text in there] == [True, True, True]
    assert here == there or not any(re.search(r"\bldexp\b", text) for text in here)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the page's steps applied."""
    checkout = copy_of_checkout(tmp_path_factory.mktemp("followed"), *NEEDED)
    add(checkout / DEFINITION, f"\n\n{block(DEFINITION)}")
    add(checkout / LOWERING, block(LOWERING), after="\nlowering(", before="\n\n")
    (listed,) = blocks(PAGE, "text")
    add(checkout / "tests/graph/importers/test_opinfo.py", listed, after='_NATIVE = """', before='\n"""')
    return checkout


def block(file: str) -> str:
    """The page's code block for a file."""
    (text,) = blocks(PAGE, f"python file={file}")
    return text
