"""A public type's name ends in a term of the glossary, a node of the IR, or a plain English word."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmap.ir import nodes, recurrence

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "glossary.md"

PLAIN = set(
    re.findall(
        r"\w+",
        """
    argument assignment assumption base body bound call cell
    check children column compiler context count dim3 drawing
    element encoder environment error evaluator expression fact finder folder folding forest function home index
    indexing info inverse invocation join json kind length limit line location loop map matrix memory
    model multiple name net object order out page parameter path pattern piece pool port position ratio read reader
    report request resource result row
    run setting simplifier size source split storage structure style symbol table tensor text transpose type unit value
    watch width writer
    """,
    )
)
"""Words that mean here what they mean in a dictionary of English or of programming, in the singular."""

STATES = {
    "Assembled", "AtLeast", "Counted", "Dense", "Described", "Finished", "Found", "Inlinable", "Lowered",
    "Only", "Safer", "Stopped", "Unrolled", "Until", "openmp_threads",
}  # fmt: skip
"""Types named by a state or a condition instead of a noun; this list only shrinks."""


def terms(page: str) -> list[str]:
    """The first column of the glossary's table, in its order."""
    rows = [row.split("|") for row in page.splitlines() if row.startswith("| ")]
    return [row[1].strip() for row in rows if row[2].strip() not in ("meaning", "---")]


def is_pass(node: ast.ClassDef) -> bool:
    """A pass is named by what it does, in the imperative: FoldViews, LowerSpecs."""
    return any(isinstance(part, ast.FunctionDef) and part.name == "run" for part in node.body)


def public_types(folder: str) -> Iterator[tuple[str, str]]:
    """The file and the name of each public class of a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        shelf = path.parent.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if shelf not in ("ir/lower", "graph/passes") or not is_pass(node):
                yield str(path.relative_to(ROOT)), node.name


def noun(name: str) -> str:
    """The last word of a name in CamelCase, in lower case."""
    words: list[str] = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9_]+", name)
    return words[-1].lower()


def is_known(name: str, known: set[str]) -> bool:
    """The noun or its singular is among the known words, or the whole name."""
    if name in known:
        return True
    word = noun(name)
    singulars = [word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ices$", "ix", word)]
    return any(form in known for form in singulars)


def known_words() -> set[str]:
    """Terms (of several words, the last one too), nodes of the IR, and plain words."""
    written = [term.lower() for term in terms(PAGE.read_text(encoding="utf-8"))]
    glossary = {form for term in written for form in (term, term.split()[-1])}
    ir = {noun(name) for module in (nodes, recurrence) for name, kind in vars(module).items() if isinstance(kind, type)}
    return glossary | ir | PLAIN


@pytest.mark.parametrize("folder", ["ir", "graph", "schedules", "backend"])
def test_each_type_is_named_by_a_known_noun(folder: str) -> None:
    known = known_words()
    unknown = [f"{file}: {name}" for file, name in public_types(folder) if not is_known(name, known | STATES)]
    assert unknown == []


def test_a_noun_of_nobody_is_noticed() -> None:
    known = known_words()
    assert not is_known("CopyOutlet", known)
    assert not is_known("Walk", known)
    assert is_known("ThreadGroup", known)
    assert is_known("Accesses", {"access"})
    assert is_known("Matrices", {"matrix"})
    assert noun("RMSNorm") == "norm"
    assert noun("Dim3") == "dim3"


def test_a_plain_word_is_no_term() -> None:
    assert PLAIN.isdisjoint(term.lower() for term in terms(PAGE.read_text(encoding="utf-8")))


def test_the_glossary_is_sorted_and_says_each_term_once() -> None:
    found = terms(PAGE.read_text(encoding="utf-8"))
    assert found == sorted(set(found), key=str.lower)
    assert len(found) > 100


def test_each_row_has_a_sentence_and_a_source() -> None:
    for row in PAGE.read_text(encoding="utf-8").splitlines():
        if row.startswith("| ") and not row.startswith(("| term", "| ---")):
            _, term, meaning, source, _ = row.split("|")
            assert meaning.strip().endswith("."), term
            assert source.strip(), term
