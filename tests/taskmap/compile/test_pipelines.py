"""The pipelines of passes: their contracts form a chain, and docs/passes.md prints them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from taskmap.graph.passes import PASSES
from taskmap.graph.passes.few_channels import FILL_CHANNELS
from taskmap.graph.passes.weight_packing import WEIGHTS_CHANNELS_LAST
from taskmap.ir.lower.pipeline import pipeline
from taskmap.ir.passes import Pass, explain
from taskmap.ir.target import cpu_target, cuda_target
from taskmap.targets.cpu_passes import cpu_passes

PAGE = Path(__file__).parents[3] / "docs" / "passes.md"
PIPELINES: dict[str, tuple[Pass[Any], ...]] = {
    "graph": PASSES,
    "graph-cpu": cpu_passes(cpu_target("avx512", 1)),
    "graph-gpu": (FILL_CHANNELS, WEIGHTS_CHANNELS_LAST),
    "cpu": pipeline(cpu_target("avx512", 1)),
    "gpu": pipeline(cuda_target("sm_90a")),
}


def filled(page: str) -> str:
    """The page, each block after a line `<!-- pipeline: NAME -->` replaced by what that pipeline says of itself."""
    return re.sub(
        r"(<!-- pipeline: ([\w-]+) -->\n```text\n).*?(```\n)",
        lambda m: f"{m[1]}{explain(PIPELINES[m[2]])}\n{m[3]}",
        page,
        flags=re.DOTALL,
    )


def test_the_page_prints_every_pipeline(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        PAGE.write_text(filled(page), encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- pipeline: ([\w-]+) -->", page)) == set(PIPELINES)
    assert page == filled(page), "if that is right, pytest --update-golden writes it"


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pass_documents_itself(name: str) -> None:
    for step in PIPELINES[name]:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", step.name)
        assert step.after
        assert step.why_here


@pytest.mark.parametrize("name", PIPELINES)
def test_an_earlier_pass_ensures_what_a_pass_requires(name: str) -> None:
    ensured: set[object] = set()
    for step in PIPELINES[name]:
        missing = [c.text for c in step.requires if c not in ensured]
        assert missing == [], step.name
        ensured.update(step.ensures)


def test_most_passes_have_contracts() -> None:
    """A pipeline without conditions would pass the test above."""
    for name in ("cpu", "gpu"):
        assert sum(bool(step.requires or step.ensures) for step in PIPELINES[name]) >= len(PIPELINES[name]) - 2
