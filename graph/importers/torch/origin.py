"""The origin of an FX node: the last line of the user's own code in its stack trace."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import torch
from torch import fx

from taskmap.graph.nodes import Origin

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in [^\n]*\n(?: {4}(?P<text>[^\n]*))?')
_TORCH = str(Path(torch.__file__).parent)


def origin_of(node: fx.Node) -> Origin:
    """The operator's name, and the user's file, line and text if the graph records them."""
    trace = node.meta.get("stack_trace") or ""
    file, line, text = _user_line(trace)
    return Origin(str(node.target), file, line, text)


@lru_cache(maxsize=1024)
def _user_line(trace: str) -> tuple[str, int, str]:
    frames = list(_FRAME.finditer(trace))
    own = [f for f in frames if not f["file"].startswith(_TORCH)]
    if not frames:
        return "", 0, ""
    last = own[-1] if own else frames[-1]
    return last["file"], int(last["line"]), (last["text"] or "").strip()
