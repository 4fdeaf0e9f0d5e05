"""The text of a report: a ledger with all facts of each group, and a narrow table. Both fit 120 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskmap.report.records import (
        ExternReport,
        GroupReport,
        HostReport,
        Refusal,
        ReportData,
        SimulatedBound,
        StepTime,
    )

WIDTH = 120
THESE_SIZES = "for these sizes only"
"""The label of a condition of a report: the nodes that prevent a graph for all sizes."""
_LEFT = 46
_LABEL = 10
_PLACE = 26
_NUMBERS = range(4, 8)
_MOST = 4
"""Lines of one kind that the ledger shows per group; the records hold all."""


def ledger(report: ReportData) -> str:
    """Header, groups that run at every call, externs and fallbacks, in running order."""
    blocks = [header(report)]
    for graph in report.graphs:
        if len(report.graphs) > 1 or graph.fallback:
            blocks.append(_graph_line(report, graph.number))
        steps = [g for g in report.groups if g.graph == graph.number and not g.once]
        blocks += [_group(g, report.roofline(g), report.simulated_bound(g)) for g in steps]
        blocks += [_extern(e) for e in report.externs if e.graph == graph.number]
        blocks += _once(report, graph.number)
    blocks += [_on_host(h) for h in report.host]
    return "\n".join(blocks)


def header(report: ReportData) -> str:
    """A summary of the report in a few lines."""
    often = [g for g in report.groups if not g.once]
    native = sum(n.native and not n.once and n.role != "folded" for n in report.nodes)
    counts = (
        count(len(report.graphs), "graph"),
        f"{count(native, 'native operator')} in {count(len(often), 'group')} per call",
        count(len(report.externs), "extern"),
    )
    lines = [f"taskmap on {report.target}, {count(report.threads, 'thread')}: {', '.join(counts)}"]
    if report.seconds > 0:
        lines.append(
            f"{_time(report.seconds)} per call in groups and externs, each the median of {report.runs} runs "
            f"(the fastest: {_time(report.fastest)})"
        )
    if report.simulated:
        lines.append("the kernels ran in the simulator, on the CPU: their times say nothing about a GPU")
    prevented = dict(report.conditions).get(THESE_SIZES)
    if prevented:
        lines += wrap(f"{THESE_SIZES}: one graph for all sizes is prevented by {prevented}", WIDTH)
    return "\n".join(lines)


def table(report: ReportData) -> str:
    """One line for each group and extern that runs at every call."""
    rows = [("group", "where", "operators", "schedule", "time", "share", "GFLOP/s", "GB/s")]
    for g in report.groups:
        if not g.once:
            names = ", ".join(name.split(" ")[0] for name in g.roles.computed)
            rates = (_number(g.gflops), _number(g.gigabytes))
            rows.append((str(g.number), g.line.place, names, g.code.schedule, *_measured(g.time), *rates))
    for e in report.externs:
        rows.append(("extern", e.line.place, e.target, e.runner, *_measured(e.time), "", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    widths[1] = min(widths[1], _PLACE)
    # The two text columns share the remaining width.
    room = WIDTH - sum(widths[i] for i in (0, 1, *_NUMBERS)) - 2 * (len(widths) - 1)
    widths[2] = min(widths[2], max(room // 2, room - widths[3]))
    widths[3] = min(widths[3], room - widths[2])
    fallbacks = [f"graph {g.number} runs through PyTorch as a whole: {g.fallback}" for g in report.graphs if g.fallback]
    return "\n".join([header(report), *(_row(row, widths) for row in rows), *(_clip(text) for text in fallbacks)])


def _group(g: GroupReport, roofline: float | None, counted: SimulatedBound | None) -> str:
    places = [str(line) for line in g.lines] or [g.name]
    title = f"group {g.number}"
    lines = [_clip(f"{title if i == 0 else '':{_LABEL}}  {text}") for i, text in enumerate(_few(places))]
    roles = g.roles
    left = [("anchor", roles.anchor)] if roles.anchor else []
    parts = (("prologue", roles.prologue), ("epilogue", roles.epilogue), ("fused", roles.fused))
    left += [(label, ", ".join(names)) for label, names in parts]
    rates = [f"{_number(rate)} {unit}" for rate, unit in ((g.gflops, "GFLOP/s"), (g.gigabytes, "GB/s")) if rate]
    seconds, share = _measured(g.time)
    calls = "" if g.time.calls == 1 else f"{g.time.calls:g} calls"
    if roofline is not None:
        rates.append(f"roofline {roofline:.0%}")
    measured = " · ".join(text for text in (seconds, calls, share, *rates) if text)
    right = [("schedule", g.code.schedule), ("work", _work(g)), ("measured", measured or "not run")]
    right += [("takes", g.code.resources)] if g.code.resources else []
    right += [("why", g.code.why)] if g.code.why else []
    if counted is not None:
        right.append(("counted", f"at least {counted.seconds * 1e6:.3g} µs on {counted.gpu}, bound by {counted.bound}"))
    lines += _columns(left, right)
    lines += [line for text in _few(_refusals(g.refused)) for line in _wrapped("refused", text)]
    return "\n".join(lines)


def _extern(e: ExternReport) -> str:
    measured = " · ".join(text for text in _measured(e.time) if text)
    ran = f"ran through {e.runner} ({measured})" if measured else f"runs through {e.runner}"
    title = _clip(f"{'extern':{_LABEL}}  {e.line}".rstrip())
    return "\n".join([title, *_columns([("operator", e.target)], [("why", f"{e.reason}; {ran}")])])


def _on_host(h: HostReport) -> str:
    title = _clip(f"{'on host':{_LABEL}}  {h.node}".rstrip())
    return "\n".join([title, *_columns([("operator", h.operator)], [("why", f"{h.reason}; runs between graphs")])])


def _once(report: ReportData, graph: int) -> list[str]:
    groups = [g for g in report.groups if g.once and g.graph == graph]
    if not groups:
        return []
    seconds = [g.time.seconds for g in groups if g.time.seconds is not None]
    spent = f" in {_time(sum(seconds))}" if seconds else ""
    what = f"{count(len(groups), 'group')} that depend only on parameters"
    return [f"once        {what} ran{spent}; they run again only when a parameter changes"]


def _graph_line(report: ReportData, number: int) -> str:
    graph = report.graphs[number]
    text = f"graph {number}     {graph.kind}"
    if graph.fallback:
        return "\n".join(wrap(f"{text}: runs through PyTorch as a whole: {graph.fallback}", WIDTH))
    if graph.seconds is None:
        return f"{text}: compiled, did not run"
    return f"{text}: {_time(graph.seconds)} a run" + ("" if graph.calls == 1 else f", {graph.calls:g} runs per call")


def _refusals(refused: Iterable[Refusal]) -> list[str]:
    """One text for each reason, with all neighbours that it excludes."""
    whom: dict[str, list[str]] = {}
    for r in refused:
        whom.setdefault(r.reason, []).append(f"{r.operator} ({r.line.place})" if r.line.place else r.operator)
    return [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in whom.items()]


def _columns(left: Iterable[tuple[str, str]], right: Iterable[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Two columns of labelled texts, each wrapped in its own."""
    a = [line for label, text in left if text for line in _labelled(label, text, _LEFT - len(indent))]
    b = [line for label, text in right if text for line in _labelled(label, text, WIDTH - _LEFT - 2)]
    return [f"{indent}{x:{_LEFT - len(indent)}}  {y}".rstrip() for x, y in zip_longest(a, b, fillvalue="")]


def _wrapped(label: str, text: str) -> list[str]:
    return [f"  {line}" for line in _labelled(label, text, WIDTH - 2)]


def _labelled(label: str, text: str, width: int) -> list[str]:
    parts = wrap(text, width - _LABEL) or [""]
    return [f"{label if i == 0 else '':{_LABEL}}{part}" for i, part in enumerate(parts)]


def _few(texts: Sequence[str]) -> list[str]:
    if len(texts) <= _MOST:
        return list(texts)
    return [*texts[: _MOST - 1], f"and {len(texts) - _MOST + 1} more"]


def _measured(time: StepTime) -> tuple[str, str]:
    return _time(time.seconds), percent(time.share)


def _work(g: GroupReport) -> str:
    amounts = ((g.work.operations, "op"), (g.work.bytes, "B"))
    return " · ".join(_scaled(amount, unit) for amount, unit in amounts if amount)


def _scaled(value: int, unit: str) -> str:
    number = float(value)
    for prefix in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.3g} T{unit}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _number(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"


def percent(share: float | None) -> str:
    """A share as text; "" for None."""
    return "" if share is None else f"{share:.1%}"


def count(n: int, what: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Texts to the left, numbers to the right."""
    both = enumerate(zip(cells, widths, strict=True))
    return "  ".join(_cell(text, width, right=i in _NUMBERS) for i, (text, width) in both).rstrip()


def _cell(text: str, width: int, right: bool) -> str:
    text = text if len(text) <= width else f"{text[: width - 1]}…"
    return f"{text:>{width}}" if right else f"{text:{width}}"


def _clip(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
