"""docs/write-a-template.md and docs/write-a-pass.md work when followed literally, in a copy of the checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.following import ROOT, add, blocks, copy_of_checkout, in_checkout, passed

TEMPLATE, PASS = "write-a-template.md", "write-a-pass.md"
NEEDED = ("tests/schedules/running.py", "tests/ir/random_kernels.py", "tests/ir/lower/test_random_kernels.py")


@pytest.mark.parametrize(("page", "script"), [(TEMPLATE, "try_template.py"), (PASS, "try_pass.py")])
def test_the_program_of_the_page_prints_what_it_shows(
    followed: Path, page: str, script: str, request: pytest.FixtureRequest
) -> None:
    (followed / script).write_text(entry(page, script), encoding="utf-8")
    done = in_checkout(followed, [script])
    assert done.returncode == 0, done.stdout + done.stderr
    path = ROOT / "docs" / page
    text = path.read_text(encoding="utf-8")
    shown = re.sub(r"^```text\n(?:(?!```).*\n)*", lambda _: f"```text\n{done.stdout.rstrip()}\n", text, flags=re.M)
    if request.config.getoption("--update-golden"):
        path.write_text(shown, encoding="utf-8")
        return
    assert text == shown, "if the compiler is right, run pytest --update-golden and read the difference"


def test_the_template_takes_nothing_else(followed: Path) -> None:
    """A maximum of whole rows goes to the rule for rows, as before."""
    program = entry(TEMPLATE, "try_template.py").replace('compare("le", r, i)', 'compare("ge", r, i)')
    program = program.split("print(")[0] + 'assert made.template != "cpu.running_max", made.template\n'
    done = in_checkout(followed, ["-c", program])
    assert done.returncode == 0, done.stderr


def test_random_kernels_keep_their_meaning_with_the_pass(followed: Path) -> None:
    assert passed(followed, "", "tests/ir/lower/test_random_kernels.py") > 0


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout in which both pages were followed."""
    checkout = copy_of_checkout(tmp_path_factory.mktemp("followed"), *NEEDED)
    for page, file in ((TEMPLATE, "schedules/cpu/running_max.py"), (PASS, "ir/lower/negations.py")):
        assert not (checkout / file).exists(), "the page shows how to add what is there"
        (checkout / file).write_text(entry(page, file), encoding="utf-8")
    schedules, pipeline = checkout / "schedules" / "__init__.py", checkout / "ir" / "lower" / "pipeline.py"
    add(schedules, entry(TEMPLATE, "import"), after="from taskmap.schedules.cpu.recurrence", before="\nfrom")
    add(schedules, entry(TEMPLATE, "template"), after="_TEMPLATES:", before="\n)")
    add(pipeline, entry(PASS, "import"), after="from taskmap.ir.lower.mapped_loops", before="\nfrom")
    add(pipeline, entry(PASS, "pipeline"), after="        Tidy(),", before="\n")
    return checkout


def entry(page: str, name: str) -> str:
    """The page's block for a file, or for a place in one."""
    (text,) = blocks(page, f"python entry={name}")
    return text
