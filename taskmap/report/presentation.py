"""A report as text, JSON and a page: what `taskmap.explain` returns."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from taskmap.ir.util.atomic_write import write_output
from taskmap.report.html.page import page
from taskmap.report.records import ReportData
from taskmap.report.text import ledger, table


@dataclass(frozen=True, slots=True, repr=False)
class Report(ReportData):
    """The report on a model: `print` shows its text, `table()` one line per group, `html()` a page with everything."""

    def table(self) -> str:
        """The groups and externs that run at every call, one line each, at most 120 columns wide."""
        return table(self)

    def __str__(self) -> str:
        return ledger(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, strings and numbers, with rates but without the text of kernels."""
        made = asdict(replace(self, kernels=()))
        for group, record in zip(self.groups, made["groups"], strict=True):
            for part in ("roles", "code", "work", "time"):
                record.update(record.pop(part))
            record.update(gflops=group.gflops, gigabytes=group.gigabytes, roofline=self.roofline(group))
        for record in made["externs"]:
            record.update(record.pop("time"))
        made["kernels"] = [
            {
                "symbol": k.symbol,
                "language": k.language,
                "schedule": k.schedule,
                "threads": k.threads,
                "simulated": None if k.simulated is None else asdict(k.simulated),
            }
            for k in self.kernels
        ]
        made["conditions"] = dict(self.conditions)
        return made | {"seconds": self.seconds, "fastest": self.fastest}

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __repr__(self) -> str:
        parts = [
            f"{len(self.graphs)} {'graph' if len(self.graphs) == 1 else 'graphs'}",
            f"{len(self.groups)} {'group' if len(self.groups) == 1 else 'groups'}",
            f"{len(self.externs)} {'extern' if len(self.externs) == 1 else 'externs'}",
        ]
        named = f" of {self.model}" if self.model else ""
        return f"<taskmap report{named} on {self.target}: {', '.join(parts)}; print it, or call save_html>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for a notebook, which keeps the styles apart."""
        page = escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width: 100%; height: 40em; border: 0"></iframe>'

    def html(self) -> str:
        """The report as one self-contained HTML page."""
        return page(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the page atomically. Raises InputError if it cannot be written."""
        write_output(Path(path), self.html(), "the page")
        return Path(path)
