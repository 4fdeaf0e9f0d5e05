"""Reports and kernels display themselves: a readable line, and HTML in a notebook."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportArgumentType=false
# pyright: reportPrivateImportUsage=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import taskmap
from taskmap.ir.nodes import Kernel
from taskmap.ir.script.read import dim, kernel
from taskmap.ir.types import f32

n = dim("n")


@pytest.fixture(scope="module")
def scale() -> Kernel:
    @kernel
    def scale(x: f32[n, 4], y: f32[n, 4]) -> Any:
        for i in range(n):
            for j in range(4):
                y[i, j] = x[i, j] * 2.0

    return scale


def test_a_kernel_shows_its_signature_and_its_text(scale: Kernel) -> None:
    assert repr(scale) == "<kernel scale(x: f32[n, 4], y: out f32[n, 4], n: i64)>"
    shown = scale._repr_html_()
    assert shown.startswith("<pre>kernel scale(x: f32[n, 4]")
    assert "&lt;" in kernel_with_a_comparison()._repr_html_()


def kernel_with_a_comparison() -> Kernel:
    @kernel
    def clip(x: f32[8], y: f32[8]) -> Any:
        for i in range(8):
            if x[i] < 1.0:
                y[i] = x[i]

    return clip


def test_a_built_kernel_shows_both_texts(scale: Kernel) -> None:
    built = taskmap.build(scale)
    assert repr(built) == "<built kernel scale(x: f32[n, 4], y: out f32[n, 4], n: i64)>"
    shown = built._repr_html_()
    assert shown.count("<details>") == shown.count("</details>") == 2
    assert "void tm_scale_" in shown


def test_a_report_shows_a_line_and_its_page() -> None:
    report = taskmap.explain(lambda x: x.relu() + 1, torch.ones(3))
    assert re.fullmatch(
        r"<taskmap report( of \S+)? on cpu:\w+: 1 graph, 1 group, 0 externs; print it, or call save_html>", repr(report)
    )
    shown = report._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert "<" not in shown.removeprefix("<").removesuffix("></iframe>")  # the page is escaped whole
    assert "sandbox" in shown


@pytest.mark.parametrize(
    ("make", "why", "hint"),
    [
        (lambda: torch.empty(2, 4, device="meta"), "it is a meta tensor", "Make a tensor with elements"),
        (lambda: torch.ones(2, 4).to_sparse(), "its layout is torch.sparse_coo", r"Pass x.to_dense\(\)"),
        (lambda: torch._neg_view(torch.ones(2, 4)), "its sign is kept", r"Pass x.resolve_neg\(\)"),
        (lambda: torch.ops.aten._efficientzerotensor([2, 4]), "it is zero without memory", r"Pass x.clone\(\)"),
    ],
)
def test_what_has_no_memory_for_a_kernel_is_told_what_to_pass(scale: Kernel, make: Any, why: str, hint: str) -> None:
    built = taskmap.build(scale)
    with pytest.raises(taskmap.TaskmapError, match=rf"(?s){why}.*{hint}") as error:
        built(make(), torch.empty(2, 4))
    assert "x.cpu()" not in str(error.value)


def test_a_fake_tensor_is_refused(scale: Kernel) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2, 4)
    with pytest.raises(taskmap.TaskmapError, match="it is a fake tensor"):
        taskmap.build(scale)(fake, torch.empty(2, 4))


def test_a_transformed_tensor_is_refused(scale: Kernel) -> None:
    built = taskmap.build(scale)

    def call(x: torch.Tensor) -> torch.Tensor:
        built(x, torch.empty(2, 4))
        return x

    with pytest.raises(taskmap.TaskmapError, match=r"torch\.func transformation"):
        torch.vmap(call)(torch.ones(3, 2, 4))


def test_a_comment_renames_no_kernel() -> None:
    """Nor does the place of a kernel in its file: the symbol depends only on the computation."""
    program = (
        "@kernel(grid=(ceil_div(n, 32),), threads=32)\n"
        "def twice(x: f32[n], y: f32[n]):\n"
        "    for (i,) in spatial(32).on(thread):\n"
        "        y[block.x * 32 + i] = x[block.x * 32 + i] * 2.0\n"
    )
    assert len({symbol_of(program), symbol_of(f"# a comment\n\n\n{program}")}) == 1
    assert symbol_of(program) != symbol_of(program.replace("2.0", "3.0"))


def symbol_of(program: str) -> str:
    """The symbol of the kernel `twice` of a file."""
    import linecache

    from taskmap.backend.cuda.codegen import generate
    from taskmap.ir.lower.pipeline import lower
    from taskmap.ir.target import cuda_target

    header = (
        "from taskmap.ir import spatial\nfrom taskmap.ir.script.read import block, ceil_div, dim, kernel, thread\n"
        "from taskmap.ir.types import f32\nn = dim('n')\n"
    )
    text = header + program
    name = f"<kernels {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "kernels"}
    exec(compile(text, name, "exec"), names)
    target = cuda_target("sm_80")
    return generate(lower(names["twice"], target=target), target).symbol
