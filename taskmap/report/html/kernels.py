"""A section for each kernel: its operators and their origin, its schedule, its mappings and its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskmap.report.html.mapping import mapping_svg
from taskmap.report.html.text import clipped, duration, esc, scaled
from taskmap.report.html.trees import lines_attribute, tree_html
from taskmap.report.records import ExternReport, GroupReport, KernelReport, Refusal, ReportData
from taskmap.report.text import count, percent

_MOST_TEXT = 120_000
"""Maximum number of characters of one kernel's text on a page."""
_MOST_TEXTS = 4_000_000
_MOST_PICTURES = 1_500_000
_MOST_LINES = 12


def sections(report: ReportData) -> str:
    """The groups that run at every call, in the order of their numbers, the externs, and the groups that run once."""
    kernels = {k.symbol: k for k in report.kernels}
    texts = _Texts()
    often = [_section(g, report, kernels.get(g.code.symbol), texts) for g in report.groups if not g.once]
    once = [_section(g, report, kernels.get(g.code.symbol), texts) for g in report.groups if g.once]
    what = f"{count(len(once), 'kernel')} that depend only on parameters and run once"
    rest = f"<details><summary>{what}</summary>{''.join(once)}</details>" if once else ""
    return "".join([*often, *(_extern(e) for e in report.externs), rest])


class _Texts:
    """The texts shown so far: a kernel of several groups is shown with the first, and a page has a size limit."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}
        self.characters = 0
        self.drawn = 0

    def text(self, kernel: KernelReport, rows: str = "") -> str:
        """The text of a kernel, up to the page's limit. rows: the attribute with the rows of its lines."""
        room = max(0, min(_MOST_TEXT, _MOST_TEXTS - self.characters))
        shown = kernel.text if len(kernel.text) <= room else kernel.text[:room].rpartition("\n")[0]
        self.characters += len(shown)
        left = kernel.text[len(shown) :].count("\n")
        note = f'<p class="note">{left} more lines; the option dump_dir writes all.</p>' if left > 1 else ""
        return f'<pre class="source" tabindex="0"{rows}><code>{esc(shown.strip())}</code></pre>{note}'

    def pictures(self, kernel: KernelReport) -> str:
        """The pictures of a kernel's mappings, each with its text."""
        parts: list[str] = []
        for picture in kernel.draw():
            caption = (
                f"<figcaption>{esc(picture.what)}<br><code>{esc(clipped(picture.mapping, 300))}</code></figcaption>"
            )
            drawn = ""
            if picture.drawing is not None and self.drawn < _MOST_PICTURES:
                drawn = mapping_svg(picture.drawing, picture.what)
                self.drawn += len(drawn)
            parts.append(f"<figure>{drawn}{caption}</figure>")
        return "".join(parts)


def _section(g: GroupReport, report: ReportData, kernel: KernelReport | None, texts: _Texts) -> str:
    share = percent(g.time.share)
    times = " · ".join(t for t in (duration(g.time.seconds), share) if t)
    facts = list(_facts(g, report))
    facts += [("instructions", line) for line in (kernel.choices() if kernel is not None else ())]
    parts = [_table(facts), _lines(g), _refused(g.refused)]
    if kernel is not None:
        parts.append(_kernel(g, kernel, texts))
    return (
        f'<details class="kernel" id="g{g.number}" data-find="{esc(", ".join(g.roles.computed).lower())}"><summary>'
        f'<span class="chip {esc(g.kind)}">{g.number}</span> <span class="what">{esc(g.title)}</span>'
        f'<span class="times">{esc(times)}</span></summary>{"".join(parts)}</details>'
    )


def _facts(g: GroupReport, report: ReportData) -> Iterator[tuple[str, str]]:
    roles, work, time = g.roles, g.work, g.time
    anchor = (roles.anchor,) if roles.anchor else ()
    parts = (("before it", roles.prologue), ("anchor", anchor), ("after it", roles.epilogue))
    for label, names in (*parts, ("computes", roles.fused), ("costs nothing", roles.views)):
        if names:
            yield label, ", ".join(names)
    template, _, config = g.code.schedule.partition("(")
    yield "schedule", template
    if config:
        yield "config", config.removesuffix(")")
    yield "reads", " · ".join(work.inputs)
    yield "writes", " · ".join(work.outputs)
    if work.operations is not None and work.bytes is not None:
        yield "work", f"{scaled(work.operations, 'op')}, {scaled(work.bytes, 'B')}"
    fastest = f"fastest {duration(time.fastest)}" if time.fastest else ""
    measured = [duration(time.seconds), fastest, percent(time.share)]
    rates = (scaled(g.gflops and g.gflops * 1e9, "op/s"), scaled(g.gigabytes and g.gigabytes * 1e9, "B/s"))
    calls = [] if time.calls == 1 or g.once else [f"{time.calls:g} calls"]
    text = " · ".join(t for t in (*measured, *calls, *rates) if t)
    yield "in the simulator" if report.simulated else "measured", text or "did not run"
    least, reached = report.least(g), report.roofline(g)
    if least is not None and report.peaks is not None and work.operations is not None and work.bytes is not None:
        memory = report.peaks.memory(work.bytes)
        unit = report.peaks.unit(work.inputs, g.kind in ("contraction", "attention"))
        bound = memory.name if work.bytes / memory.rate >= work.operations / unit.rate else unit.name
        share = f"{percent(reached)} reached; " if reached is not None else ""
        yield "roofline", f"{share}at least {duration(least)}, bound by {bound}"
    counted = report.simulated_bound(g)
    if counted is not None:
        alone = ", ".join(f"{name} {duration(seconds)}" for name, seconds in counted.resources if seconds)
        yield "counted", f"at least {duration(counted.seconds)} on {counted.gpu}, bound by {counted.bound} ({alone})"
    if g.code.resources:
        yield "takes", g.code.resources
    if g.once:
        yield "runs", "once, and again only when a frozen parameter changes"


def _table(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{esc(label)}</dt><dd>{esc(text)}</dd>" for label, text in facts)
    return f"<dl>{rows}</dl>"


def _lines(g: GroupReport) -> str:
    """The lines of the program, or the nodes of the model, that the group came from."""
    said = list(dict.fromkeys(str(line) for line in (g.lines or (g.line,)) if str(line)))
    if not said:
        return ""
    more = len(said) - _MOST_LINES
    items = "".join(f"<li><code>{esc(clipped(line, 300))}</code></li>" for line in said[:_MOST_LINES])
    rest = f"<li>and {more} more</li>" if more > 0 else ""
    what = "From these lines" if g.line.file else "From these nodes"
    return f"<h4>{what}</h4><ul>{items}{rest}</ul>"


def _refused(refused: Sequence[Refusal]) -> str:
    whom: dict[str, list[str]] = {}
    for r in refused:
        where = f" ({r.line})" if str(r.line) else ""
        whom.setdefault(r.reason, []).append(clipped(f"{r.operator}{where}", 200))
    if not whom:
        return ""
    items = "".join(
        f"<li><b>{esc(', '.join(dict.fromkeys(names)))}</b>: {esc(reason)}</li>" for reason, names in whom.items()
    )
    return f"<h4>Not fused with it</h4><ul>{items}</ul>"


def _kernel(g: GroupReport, kernel: KernelReport, texts: _Texts) -> str:
    first = texts.first.setdefault(kernel.symbol, g.number)
    if first != g.number:
        return f'<p>The kernel is that of <a href="#g{first}">group {first}</a>.</p>'
    lines = kernel.text.strip().count("\n") + 1
    block = f", {kernel.threads} threads in a block" if kernel.threads else ""
    pictures = texts.pictures(kernel)
    mappings = f"<h4>Task mappings</h4>{pictures}" if pictures else ""
    tree = kernel.tree()
    text = texts.text(kernel, lines_attribute(tree) if tree is not None else "")
    if tree is not None:
        text = f'<div class="beside">{tree_html(tree)}<div>{text}</div></div>'
    return (
        f'{mappings}<details class="text"><summary>{esc(kernel.language)}, {count(lines, "line")}{block}: '
        f"<code>{esc(kernel.symbol)}</code></summary>{text}</details>"
    )


def _extern(e: ExternReport) -> str:
    times = " · ".join(t for t in (duration(e.time.seconds), percent(e.time.share)) if t)
    facts: Mapping[str, str] = {
        "operator": e.target,
        "why": e.reason,
        "from": str(e.line),
        "reads": " · ".join(e.inputs),
        "measured": times or "did not run",
    }
    return (
        f'<details class="kernel" id="e{e.graph}-{e.node}" data-find="{esc(e.target.lower())}"><summary>'
        f'<span class="chip extern">{esc(e.runner)}</span> <span class="what">{esc(e.target)}</span>'
        f'<span class="times">{esc(times)}</span></summary>{_table((k, v) for k, v in facts.items() if v)}</details>'
    )
