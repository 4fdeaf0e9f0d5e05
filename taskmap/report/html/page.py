"""Puts the HTML page of a report together.

The one file contains everything: no address is fetched, and the policy at its head allows no script but its own. Names
come from models and may be hostile; they appear only as text, never in the script or the style.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files

from taskmap.report.html.graph import graph_svg
from taskmap.report.html.kernels import sections
from taskmap.report.html.plot import roofline_svg
from taskmap.report.html.text import clipped, duration, esc, scaled
from taskmap.report.records import GroupReport, ReportData, StepTime
from taskmap.report.text import count, percent

_MOST_OPERATORS = 90


def page(report: ReportData) -> str:
    """The report as one HTML document."""
    style, script = _part("page.css"), _part("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    title = f"{clipped(report.model, 120) or 'a model'}, explained by taskmap"
    body = (_head(report), _conditions(report), _graphs(report), _plot(report), _table(report), _kernels(report))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{esc(title)}</title>\n'
        f"<style>{style}</style></head>\n<body>{''.join(body)}\n<script>{script}</script></body></html>\n"
    )


@lru_cache(maxsize=4)
def _part(name: str) -> str:
    """A file in this folder."""
    return files(__package__ or __name__).joinpath(name).read_text(encoding="utf-8")


def _head(report: ReportData) -> str:
    often = [g for g in report.groups if not g.once]
    native = sum(n.native and not n.once and n.role != "folded" for n in report.nodes)
    least = [report.least(g) for g in often if g.time.seconds]
    known = [t for t in least if t is not None]
    where = " in the simulator" if report.simulated else ""
    tiles = [
        (duration(report.seconds) or "not run", f"a call{where}, kernel by kernel"),
        (str(len(often)), f"kernels of {count(native, 'operator')}"),
        (str(len(report.externs) + len(report.host)), f"operators run by {_runners(report)}"),
    ]
    if known and len(known) == len(least) and report.seconds and not report.simulated:
        took = sum((g.time.seconds or 0.0) * g.time.calls for g in often)
        total = sum((report.least(g) or 0.0) * g.time.calls for g in often)
        tiles.append((percent(total / took), "of the roofline, all kernels together"))
    shown = "".join(f"<div><b>{esc(value)}</b><span>{esc(what)}</span></div>" for value, what in tiles)
    simulated = '<p class="note">The kernels ran in the simulator, on the CPU: their times say nothing about a GPU.</p>'
    fallbacks = "".join(
        f'<p class="note">Graph {g.number} runs through PyTorch as a whole: {esc(g.fallback)}</p>'
        for g in report.graphs
        if g.fallback
    )
    return (
        f"<header><h1>{esc(report.model or 'A model')}</h1><p>compiled by taskmap for {esc(report.target)}, "
        f"{count(report.threads, 'thread')}; every time is the median of {count(report.runs, 'run')}</p></header>"
        f'<main><section class="tiles" aria-label="Totals">{shown}</section>'
        f"{simulated if report.simulated else ''}{fallbacks}"
    )


def _runners(report: ReportData) -> str:
    runners = {e.runner for e in report.externs} | ({"numpy"} if report.host else set())
    return " and ".join(sorted(runners)) or "PyTorch"


def _conditions(report: ReportData) -> str:
    if not report.conditions:
        return ""
    rows = "".join(f"<dt>{esc(name)}</dt><dd>{esc(value)}</dd>" for name, value in report.conditions)
    return f"<details><summary>Conditions</summary><dl>{rows}</dl></details>"


def _graphs(report: ReportData) -> str:
    parts: list[str] = []
    for graph in report.graphs:
        if graph.fallback or not any(g.graph == graph.number for g in report.groups):
            continue
        runs = f", {duration(graph.seconds)} a run" if graph.seconds is not None else ", did not run"
        parts.append(
            f"<details open><summary>Graph {graph.number}: {esc(graph.kind)}{runs}</summary>"
            f'<div class="zoom" role="group" aria-label="Size of the picture">'
            f'<button type="button" data-zoom="0.8">−</button><button type="button" data-zoom="1.25">+</button>'
            f'<button type="button" data-zoom="0">whole</button></div>'
            f'<div class="picture" tabindex="0">{graph_svg(report, graph.number)}</div></details>'
        )
    if not parts:
        return ""
    legend = "".join(
        f'<span class="chip {kind}">{kind}</span> '
        for kind in dict.fromkeys([*(g.kind for g in report.groups), *("extern" for _ in report.externs[:1])])
    )
    note = f'<p class="note">{legend}a redder kernel takes more time; click it for details</p>'
    return f"<section><h2>Kernels</h2>{note}{''.join(parts)}</section>"


def _plot(report: ReportData) -> str:
    plot = roofline_svg(report)
    if not plot or report.peaks is None:
        return ""
    if report.simulated:
        what = "Points: the bound by the simulator's counters. Rings: the roofline's bound. Nothing ran on a GPU."
    else:
        what = "One point for each kernel, with its number; a larger point takes more time."
    return (
        f'<section><h2>Roofline</h2><div class="picture plot">{plot}</div><p class="note">{what} '
        f"Ceilings: {esc(report.peaks.origin)}. Each kernel is bound by the smallest memory that holds its data.</p>"
        "</section>"
    )


def _table(report: ReportData) -> str:
    heads = (
        ("kernel", "n"), ("operators", ""), ("from", ""), ("schedule", ""), ("time", "n"), ("share", "n"),
        ("op/s", "n"), ("B/s", "n"), ("roofline", "n"), ("above it", "n"),
    )  # fmt: skip
    head = "".join(
        f'<th scope="col"{" class=n" if kind else ""}><button type="button">{name}</button></th>'
        for name, kind in heads
    )
    rows = "".join(_row(g, report) for g in report.groups if not g.once)
    rows += "".join(
        _cells(
            "extern", f'<a href="#e{e.graph}-{e.node}">{esc(e.runner)}</a>', 1e9,
            [(esc(clipped(e.target, _MOST_OPERATORS)), None), (esc(clipped(str(e.line), 80)), None), ("", None),
             *_times(e.time), ("", 0.0), ("", 0.0), ("", 0.0), ("", 0.0)],
        )
        for e in report.externs
    )  # fmt: skip
    return (
        '<section><h2>Times</h2><div class="wide"><table class="sortable"><caption>Kernels that run at every call; '
        "“above it” is the time in excess of the roofline's bound.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(g: GroupReport, report: ReportData) -> str:
    reached, least = report.roofline(g), report.least(g)
    above = None if reached is None or least is None or g.time.seconds is None else max(0.0, g.time.seconds - least)
    return _cells(
        g.kind, f'<a href="#g{g.number}">{g.number}</a>', g.number,
        [(esc(clipped(", ".join(g.roles.computed), _MOST_OPERATORS)), None), (esc(clipped(str(g.line), 80)), None),
         (esc(g.code.schedule.partition("(")[0]), None), *_times(g.time),
         (scaled(g.gflops and g.gflops * 1e9, ""), g.gflops),
         (scaled(g.gigabytes and g.gigabytes * 1e9, ""), g.gigabytes),
         (percent(reached), reached), (duration(above), above)],
    )  # fmt: skip


def _times(time: StepTime) -> tuple[tuple[str, float | None], ...]:
    return (duration(time.seconds), time.seconds), (percent(time.share), time.share)


def _cells(kind: str, first: str, number: float, cells: list[tuple[str, float | None]]) -> str:
    share = cells[4][1] or 0.0
    made = [f'<th scope="row" class="n" data-value="{number}"><span class="chip {esc(kind)}">{first}</span></th>']
    for place, (text, value) in enumerate(cells):
        if place < 3:
            made.append(f"<td>{text}</td>" if place < 2 else f'<td class="w">{text}</td>')
            continue
        bar = f' style="--share:{share:.4f}"' if place == 4 else ""
        kinds = "n share" if place == 4 else "n"
        made.append(f'<td class="{kinds}" data-value="{value if value is not None else -1:.6g}"{bar}>{text}</td>')
    return f"<tr>{''.join(made)}</tr>"


def _kernels(report: ReportData) -> str:
    return (
        '<section><h2>Each kernel</h2><p class="tools"><label>Show those with <input type="search" id="find" '
        'autocomplete="off"></label> <button type="button" id="open">open all</button> '
        f'<button type="button" id="close">close all</button></p>{sections(report)}</section></main>'
    )
