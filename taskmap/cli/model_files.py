"""Checks that a model's file exists, before the slow imports needed to read it."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from taskmap.ir.errors import ImportGraphError


def check_model_file(path: Path) -> None:
    """Raises ImportGraphError, which names the most similar file of the folder, if ``path`` is not a readable file."""
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        folder = path.parent
        beside = [p.name for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
        near = get_close_matches(path.name, beside, n=1)
        raise ImportGraphError(
            f"cannot read the model {str(path)!r}",
            why=f"{error.strerror or error}.",
            hint=f"Did you mean {str(folder / near[0])!r}?" if near else None,
        ) from error
