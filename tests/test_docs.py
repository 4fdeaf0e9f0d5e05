"""The guides work when followed literally: the Python blocks of each page run, in order, in one namespace."""

import re
from pathlib import Path

import pytest

from benchmarks.gpu.sass import can_disassemble

DOCS = Path(__file__).parent.parent / "docs"


ASSEMBLY = pytest.mark.skipif(not can_disassemble(), reason="nvdisasm is not installed: pip install taskmap[test]")


@pytest.mark.parametrize("page", ["watch-a-compilation.md", pytest.param("reading-our-sass.md", marks=ASSEMBLY)])
def test_the_code_of_a_page_runs(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")))
def test_files_that_a_page_names_exist(page: str) -> None:
    """Paths in backticks that look like files of this repository exist."""
    text = (DOCS / page).read_text(encoding="utf-8")
    rooms = "ir|graph|schedules|backend|taskmap|tests|docs|examples"
    named = re.findall(rf"(?:`|--)((?:{rooms})/[\w/.-]+\.\w+)(?:`|-)", text)
    missing = [n for n in named if not (DOCS.parent / n).exists()]
    assert missing == []


def test_every_guide_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert linked == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}


def test_the_reference_has_the_public_modules() -> None:
    """Those that the architecture page declares, which tests/test_public_names.py reads there too."""
    reference = re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), flags=re.M)
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    declared = page.partition("## The public interface")[2].partition("\n## ")[0]
    assert sorted(reference) == sorted(set(re.findall(r"`(taskmap(?:\.\w+)*)`", declared)))


def test_the_site_has_every_guide() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == pages


@pytest.mark.parametrize("page", sorted(p.name for p in (DOCS / "design").glob("*.md")))
def test_a_design_note_says_what_was_rejected(page: str) -> None:
    text = (DOCS / "design" / page).read_text(encoding="utf-8")
    assert re.findall(r"^\*\*(Idea|Non-goals|Rejected)\.\*\*", text, flags=re.M) == ["Idea", "Non-goals", "Rejected"]
    assert len(text.splitlines()) < 60


def test_the_templates_of_the_architecture_page_exist() -> None:
    """Tables headed "In `folder/`:" name files of that folder."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    tables = re.findall(r"^In `([\w/]+)/`:\n\n((?:\|.*\n)+)", page, flags=re.M)
    named = [f"{folder}/{file}" for folder, rows in tables for file in re.findall(r"^\| .*?`([\w/]+\.py)`", rows, re.M)]
    assert len(named) > 15
    assert [file for file in named if not (DOCS.parent / file).exists()] == []
