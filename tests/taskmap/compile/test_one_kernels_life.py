"""docs/one-kernels-life.md shows excerpts of the stages that its model goes through, as they are."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskmap.ir.target import cpu_target
from tests.following import ROOT, blocks

PAGE = "one-kernels-life.md"


@dataclass(frozen=True)
class Excerpt:
    """Lines of the one dumped file whose name matches: from each line that a pattern is found in, so many lines."""

    file: str
    parts: tuple[tuple[str, int], ...]

    def of(self, stages: dict[str, str]) -> str:
        (text,) = (stages[name] for name in stages if re.search(self.file, name))
        lines = text.splitlines()
        shown: list[str] = []
        end = 0
        for pattern, count in self.parts:
            start = next(i for i in range(end, len(lines)) if re.search(pattern, lines[i]))
            indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
            shown += [f"{indent}..."] if start > end else []
            end = min(start + count, len(lines))
            shown += lines[start:end]
        return "\n".join([*shown, *(["..."] if end < len(lines) else [])])


EXCERPTS = {
    "fx": Excerpt("_fx.txt$", (("def forward", 6),)),
    "graph": Excerpt("_graph.txt$", (("", 10),)),
    "plan": Excerpt("_plan.txt$", (("^0:", 10), ("strides", 5))),
    "task": Excerpt("_task_mm_add", (("", 30),)),
    "scheduled": Excerpt(
        "_kernel_mm_add_scheduled",
        (("^kernel", 5), ("for k0 in", 5), ("in0_1 =", 2), ("total.* @ ", 2), ("for row in", 7)),
    ),
    "lowered": Excerpt(
        "_kernel_mm_add_spill-registers",
        (("^kernel", 6), ("for k0 in", 1), ("in1_1:", 2), ("in0_1 =", 2), ("fma", 2), ("for row in", 6)),
    ),
    "c": Excerpt(
        r"tm_mm_add\.c$", (("^void", 4), ("for .*k0", 1), ("const f32x4 in1", 2), ("tm_fma", 2), ("for .*row", 6))
    ),
    "rows": Excerpt("_kernel_amax_exp_sum_softmax_spill-registers", (("^kernel", 30),)),
    "program": Excerpt("_program.txt$", (("", 10),)),
    "launch": Excerpt("taskmap_run", (("call->arena", 1), (r"kernels\[0\]", 2), ("^int taskmap_run", 6))),
}


def test_the_page_shows_what_the_compiler_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page = ROOT / "docs" / PAGE
    written = page.read_text(encoding="utf-8")
    assert re.findall(r"^<!-- (\w+) -->$", written, flags=re.M) == list(EXCERPTS)
    stages = compiled(tmp_path, monkeypatch)
    right = with_excerpts(written, lambda name: EXCERPTS[name].of(stages))
    if request.config.getoption("--update-golden"):
        page.write_text(right, encoding="utf-8")
        return
    assert written == right, "if the compiler is right, run pytest --update-golden and read the difference"


def with_excerpts(page: str, excerpt: Callable[[str], str]) -> str:
    """The page, each block behind a comment that names an excerpt replaced by it."""
    return re.sub(
        r"^(<!-- (\w+) -->\n```\w+\n)(?:(?!```).*\n)*",
        lambda found: f"{found[1]}{excerpt(found[2])}\n",
        page,
        flags=re.M,
    )


def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The stages by file name, of the page's model on a CPU whose caches do not depend on this machine."""
    (program,) = blocks(PAGE, "python file=model.py")
    (folder / "model.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("taskmap.targets.cpu.host_target", lambda options, threads: cpu_target("generic", 2))
    runpy.run_path("model.py")
    names: dict[str, str] = {}
    files = sorted((folder / "stages" / "000_inference").iterdir())
    texts = {_without_hashes(file.name): _without_hashes(file.read_text(encoding="utf-8")) for file in files}
    return {name: text if "_task_" in name else _renumbered(text, names) for name, text in texts.items()}


def _without_hashes(text: str) -> str:
    """Text without the hashes of symbols and without the folder of the model's file."""
    text = re.sub(r"(?<=[a-z])_(?:[0-9a-f]{16}|[0-9a-f]{8})(?![0-9a-z])", "", text)
    return re.sub(r"File: \S*/(?=model\.py)", "File: ", text)


def _renumbered(text: str, names: dict[str, str]) -> str:
    """Text whose nodes are numbered from 0 in the order in which they appear; a process counts all its nodes."""
    return re.sub(r"%(\d+)\b", lambda found: names.setdefault(found[1], f"%{len(names)}"), text)


@pytest.mark.parametrize(
    ("text", "plain"), [("tm_mm_add_b38ffff71044d734(", "tm_mm_add("), ("in0_15 f32x4_1", "in0_15 f32x4_1")]
)
def test_only_hashes_are_left_out(text: str, plain: str) -> None:
    assert _without_hashes(text) == plain
