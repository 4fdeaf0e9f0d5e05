"""The page of a report: well-formed, self-contained, safe with hostile names, complete, and of bounded size."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional

import taskmap
from taskmap.errors import InputError
from taskmap.ir.algebra.mapping import repeat, spatial
from taskmap.ir.target import gpu_named
from taskmap.onnx.model import load_model
from taskmap.options import Options
from taskmap.report.explain import explain_onnx
from taskmap.report.html.layers import lay_out
from taskmap.report.html.text import duration, esc, scaled
from taskmap.report.presentation import Report
from taskmap.report.records import (
    ExternReport,
    Flow,
    GraphReport,
    GroupCode,
    GroupReport,
    GroupWork,
    KernelReport,
    Line,
    NodeReport,
    OperatorRoles,
    Picture,
    Refusal,
    StepTime,
)
from taskmap.report.roofline import Ceiling, Peaks, gpu_peaks

_VOID = {"meta", "br", "input", "link", "img", "hr"}
HOSTILE = "\"'><script>alert(1)</script><!-- */ --> ]]> %s {0} </style> javascript:x \x00\x1b[31m \u202e end"


class Block(nn.Module):
    """A residual block with a head, at the size of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.conv1(x))
        y = functional.relu(self.conv2(y) + x)
        scores = self.fc(y.mean((2, 3)))
        u, s, _ = torch.linalg.svd(scores.t() @ scores)
        out: Tensor = (u * s).relu()
        return out


@pytest.fixture(scope="module")
def report() -> Report:
    """A model with convolutions, a product, element-wise work and an extern."""
    with torch.no_grad():
        return taskmap.explain(Block().eval(), torch.randn(1, 16, 12, 12))


class Page(HTMLParser):
    """The contents of a page; mismatched tags fail. ``text``: by its element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} stands twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


def svgs(text: str) -> Iterator[ElementTree.Element]:
    for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        yield ElementTree.fromstring(found)


def sound(text: str) -> Page:
    """The page, after the checks that hold for every page."""
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"a script in an attribute of {tag}"
            if name in ("href", "src", "action", "data"):
                assert value.startswith("#"), f"{tag} leads out of the page: {value}"
                assert value[1:] in page.ids
    (script,) = [data for tag, data in page.text if tag == "script"]
    assert len(page.all("script")) == 1
    assert "//" not in re.sub(r"^\s*//.*$|/\\/\\/.*", "", script, flags=re.MULTILINE).replace(r"\/\/", "")
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "url(" not in re.sub(r"url\(#arrow\d+\)", "", text)
    assert "@import" not in text
    for svg in svgs(text):
        children = [child.tag.rpartition("}")[2] for child in svg]
        assert children[:2] == ["title", "desc"], "a picture says what it shows"
        assert svg.get("role") == "img"
    return page


def test_a_page_has_everything(report: Report) -> None:
    text = report.html()
    page = sound(text)
    assert {f"g{g.number}" for g in report.groups} | {f"e{e.graph}-{e.node}" for e in report.externs} <= set(page.ids)
    said = " ".join(data for _, data in page.text)
    for group in report.groups:
        assert group.code.symbol in said
        assert group.code.schedule.partition("(")[0] in said
        for refused in group.refused:
            assert refused.reason in said
    for kernel in report.kernels:
        assert kernel.text.strip() in [data for tag, data in page.text if tag == "code"]
    for extern in report.externs:
        assert extern.reason in said
    assert [name for name, _ in report.conditions][:3] == ["target", "CPU", "threads"]
    assert "measured on this machine" in dict(report.conditions)["peaks"]
    for name, value in report.conditions:
        assert name in said
        assert value in said
    assert "y = functional.relu(self.conv1(x))" in said
    kinds = {svg.get("class") for svg in svgs(text)}
    assert kinds == {"graph", "roofline", "mapping"}
    assert len(text) < 1_000_000


def test_every_kernel_is_in_the_graph_and_under_the_roofline(report: Report) -> None:
    pictures = {svg.get("class"): svg for svg in svgs(report.html()) if svg.get("class") != "mapping"}
    often = [g for g in report.groups if not g.once]
    nodes = {a.get("href") for a in pictures["graph"] if a.tag == "a"}
    assert nodes == {f"#g{g.number}" for g in often} | {f"#e{e.graph}-{e.node}" for e in report.externs}
    points = {a.get("href") for a in pictures["roofline"].iter() if a.tag.endswith("}a")}
    assert points == {f"#g{g.number}" for g in often if g.work.operations}


def test_the_parts_are_packaged() -> None:
    settings_of = (Path(taskmap.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = re.findall(r'^"\*" = \[(.*)\]$', settings_of, re.MULTILINE)
    parts = Path(taskmap.__file__).parent / "report" / "html"
    here = {f'"*{p.suffix}"' for p in parts.iterdir() if p.is_file()} - {'"*.py"'}
    assert here == {'"*.css"', '"*.js"'}
    assert here <= set(line.split(", "))


def test_hostile_names_are_text() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], [HOSTILE + "p"], name=HOSTILE),
        helper.make_node("Relu", [HOSTILE + "p"], [HOSTILE + "q"], name="</title></svg>" + HOSTILE),
        helper.make_node("Softmax", [HOSTILE + "q"], ["y"], name="&lt;b&gt; ' onload='x"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in ("x", "w", "y")]
    graph = helper.make_graph(nodes, HOSTILE, ports[:2], ports[2:])
    proto = onnx.ModelProto()
    proto.CopyFrom(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    model = load_model(proto, Options(profile=True, threads=1))
    x = np.eye(4, dtype=np.float32)
    report = explain_onnx(model, {"x": x, "w": x}, name=HOSTILE)
    page = sound(report.html())
    assert "\x00" not in report.html()
    (heading,) = [data for tag, data in page.text if tag == "h1"]
    assert heading == HOSTILE.replace("\x00", "�").replace("\x1b", "�").replace("\u202e", "�")
    said = " ".join(data for _, data in page.text)
    assert "<script>alert(1)</script>" in said
    assert "<b>" not in said


def test_the_names_of_onnx_nodes_are_where_a_kernel_is_from() -> None:
    nodes = [helper.make_node("MatMul", ["x", "x"], ["p"], name="first"), helper.make_node("Exp", ["p"], ["y"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    report = explain_onnx(load_model(proto, Options(profile=True, threads=1)), {"x": np.ones((8, 8), np.float32)})
    (group,) = report.groups
    assert [str(line) for line in group.lines] == ["first", "y"]
    assert "first" in str(report)


def test_explaining_an_onnx_model_needs_a_profile() -> None:
    graph = helper.make_graph([], "g", [], [])
    with pytest.raises(InputError, match="without a profile"):
        explain_onnx(load_model(helper.make_model(graph)), {})


def test_a_page_has_a_size(report: Report) -> None:
    long = '  x = "</code>";\n' * 400_000
    kernels = tuple(replace(k, text=long) for k in report.kernels)
    text = replace(report, kernels=kernels).html()
    assert len(text) < 8_000_000
    assert "more lines; the option dump_dir writes all" in text
    assert "</code>&quot;" not in text


def test_a_report_without_peaks_or_times(report: Report) -> None:
    bare = replace(report, peaks=None, conditions=(), kernels=(), flows=(), groups=report.groups[:1])
    page = sound(replace(bare, graphs=(), externs=()).html())
    assert "g0" in page.ids
    assert all(bare.least(g) is None and bare.roofline(g) is None for g in bare.groups)


def test_a_simulated_report_marks_what_could_be_reached(report: Report) -> None:
    simulated = replace(report, simulated=True, peaks=gpu_peaks(gpu_named("H100")))
    text = simulated.html()
    sound(text)
    assert "their times say nothing about a GPU" in text
    (plot,) = [svg for svg in svgs(text) if svg.get("class") == "roofline"]
    assert all("ceiling" in (c.get("class") or "") for c in plot.iter() if c.tag.endswith("circle"))
    assert all(simulated.roofline(g) is None for g in simulated.groups)
    assert "their times say nothing about a GPU" in str(simulated)


def test_the_plot_stands_alone(report: Report) -> None:
    plot = re.findall(r"<svg[^>]*class=\"roofline\".*?</svg>", report.html(), re.DOTALL)
    assert len(plot) == 1
    assert ElementTree.fromstring(plot[0]).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_file_is_written_whole_or_not_at_all(report: Report, tmp_path: Path) -> None:
    path = report.save_html(tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == report.html()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="the page cannot be written"):
        report.save_html(tmp_path / "no" / "page.html")


def test_json_has_peaks_and_shares(report: Report) -> None:
    found = report.to_dict()
    assert found["peaks"]["memories"]
    assert [k["symbol"] for k in found["kernels"]] == [k.symbol for k in report.kernels]
    assert all("text" not in k for k in found["kernels"])
    assert all(
        {"anchor", "views", "schedule", "why", "inputs", "bytes", "seconds", "share", "gflops"} <= g.keys()
        for g in found["groups"]
    )
    shares = [g["roofline"] for g in found["groups"]]
    assert all(share is None or share > 0 for share in shares)
    assert any(shares)


def test_flows_lead_from_what_writes_to_what_reads(report: Report) -> None:
    steps = {f"group {g.number}" for g in report.groups} | {f"extern {e.graph}.{e.node}" for e in report.externs}
    ends = {end for f in report.flows for end in (f.source, f.target)}
    assert {e for e in ends if e.startswith(("group", "extern"))} <= steps
    for group in report.groups:
        assert group.once or any(f.target == f"group {group.number}" for f in report.flows)
    assert any(f.target == "results 0" for f in report.flows)


def test_a_page_of_a_made_up_report_stays_as_it_is(golden: Callable[[str, str], None]) -> None:
    """Everything that does not depend on the machine: graph, plot, table and sections, without style and script."""
    text = re.sub(r"<(style|script)>.*?</\1>", "", made_up().html(), flags=re.DOTALL)
    text = re.sub(r"sha256-[^']*", "sha256-", text)
    golden("explain_page.html", re.sub(r"(?=<(?:section|details|tr|svg|g|a|path|dl|header|h4)\b)", "\n", text))


def made_up() -> Report:
    """A matrix product with a prologue and an epilogue, a softmax, and an operator of PyTorch between them."""
    line = Line("net.py", 7, "y = relu(x @ w + b)")
    mm = GroupCode("cpu.matmul(tile=8x2v, rows=64)", "tm_mm")
    product = GroupReport(
        0, 0, "mm_add_relu", "contraction", line, (line,),
        OperatorRoles("mm 64×32 · 32×16", ("cast",), ("add", "relu")),
        mm,
        GroupWork(("f32[64, 32]",), ("f32[64, 16]",), (0,), (3,), 14336, 67584),
        StepTime(1e-6, 9e-7, 1.0, 0.5), False, (Refusal(5, "sum", Line(), "it needs whole rows"),),
    )  # fmt: skip
    softmax = replace(
        product, number=1, name="softmax", kind="row", roles=OperatorRoles(fused=("amax", "exp")),
        code=GroupCode("cpu.rows(row=16)", "tm_softmax"), work=replace(product.work, operations=4096),
        time=replace(product.time, seconds=5e-7, share=0.25), refused=(),
    )  # fmt: skip
    extern = ExternReport(
        0, 4, "aten.sort.stable", line, "no taskmap operator", ("f32[64, 16]",), StepTime(5e-7, 4e-7, 1.0, 0.25)
    )
    pairs = [("input 0.0", "group 0"), ("group 0", "extern 0.4"), ("extern 0.4", "group 1"), ("group 0", "group 1")]
    return Report(
        (GraphReport(0, "inference", 6, (0,), (5,), 1.0, 2e-6),),
        (NodeReport(0, 3, "mm", "aten.mm", line, "f32[64, 16]", "anchor", (0,)),),
        (product, softmax), (extern,), "cpu:avx2", 2, 15, "net.py",
        (
            KernelReport("tm_mm", "C", mm.schedule, "void tm_mm(f32 *out)\n{\n  out[0] = 1.0f;\n}\n", draw=mapped),
            KernelReport("tm_softmax", "C", softmax.code.schedule, "void tm_softmax(f32 *out);\n"),
        ),
        tuple(Flow(a, b, "f32[64, 16]") for a, b in (*pairs, ("group 1", "results 0"))),
        Peaks((Ceiling("L2", 1e11, 1 << 20), Ceiling("memory", 2e10)), (Ceiling("f32", 1e11),), "made up"),
        (("threads", "2"),),
    )  # fmt: skip


def mapped() -> tuple[Picture, ...]:
    mapping = spatial(2, 2) * repeat(1, 2)
    return (Picture("who does each task", repr(mapping), mapping.draw()),)


def test_text_can_be_read_on_what_it_stands_on() -> None:
    """A contrast of at least 4.5 to 1, as the Web Content Accessibility Guidelines 2.1 require of text (1.4.3)."""
    style = (Path(taskmap.__file__).parent / "report" / "html" / "page.css").read_text(encoding="utf-8")
    palettes = [dict(re.findall(r"--(\w+): (#\w+)", part)) for part in style.split("@media")[:2]]
    assert all(len(palette) > 12 for palette in palettes)
    for palette in palettes:
        for back in ("back", "card"):
            for text in ("text", "soft", "link", "key", "number", "comment", "name"):
                assert contrast(palette[text], palette[back]) >= 4.5, (text, back)
        for chip in ("contraction", "attention", "reduce", "pointwise", "extern"):
            assert contrast("#ffffff", palette[chip]) >= 4.5, chip


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' luminances, as the guidelines define it."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * d for d in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


PEAKS = Peaks((Ceiling("L2", 100.0, 1000), Ceiling("memory", 10.0)), (Ceiling("f32", 50.0), Ceiling("f16", 500.0)), "")


@pytest.mark.parametrize(
    ("operations", "moved", "inputs", "product", "seconds"),
    [
        (0, 1000, ("f32[8]",), False, 10.0),
        (0, 1001, ("f32[8]",), False, 100.1),
        (5000, 1000, ("f32[8]",), True, 100.0),
        (5000, 100, ("f16[8]",), True, 10.0),
        (5000, 100, ("f16[8]",), False, 100.0),
        (5000, 100, (), True, 100.0),
    ],
)
def test_the_least_time(operations: int, moved: int, inputs: tuple[str, ...], product: bool, seconds: float) -> None:
    assert PEAKS.seconds(operations, moved, inputs, product) == pytest.approx(seconds)


def test_the_peaks_of_a_gpu_are_those_of_its_data_sheet() -> None:
    h100 = gpu_peaks(gpu_named("H100"))
    assert h100.memories[-1].rate == 3350e9
    assert h100.arithmetic[-1].rate == pytest.approx(990e12, rel=0.01)


@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]))
        )
    )
)
@settings(max_examples=60)
def test_layers(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    """Nothing overlaps, every node is below its inputs, and each edge is a chain of legs of one layer."""
    count, pairs = drawn
    nodes = [str(i) for i in range(count)]
    edges = [(str(a), str(b)) for a, b in pairs]
    drawing = lay_out(nodes, edges, 100.0, 10.0)
    assert set(drawing.places) == set(nodes)
    for a, b in edges:
        assert drawing.places[a].layer < drawing.places[b].layer
    for layer in range(drawing.layers):
        row = sorted(p.x for p in drawing.places.values() if p.layer == layer)
        assert all(right - left > 99.9 for left, right in pairwise(row))
        assert not row or (row[0] > 49.9 and row[-1] < drawing.width - 49.9)
    for source, legs in drawing.legs.items():
        assert all(below.layer == above.layer + 1 for above, below in legs)
        reached = {drawing.places[source]}
        for above, below in legs:
            assert above in reached
            reached.add(below)
        assert {drawing.places[b] for a, b in edges if a == source} <= reached


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (duration(None), ""), (duration(2.5e-3), "2.5 ms"), (duration(3e-9), "3 ns"), (scaled(1234.0, "B"), "1.23 kB"),
        (scaled(5e15, "op"), "5 Pop"), (scaled(None, "B"), ""), (esc("<\x07&'\ud800"), "&lt;�&amp;&#x27;�"),
    ],
)  # fmt: skip
def test_numbers_and_names(made: str, text: str) -> None:
    assert made == text
