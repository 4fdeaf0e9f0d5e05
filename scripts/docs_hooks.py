"""Hooks of mkdocs: fences of our tests become fences that it reads; an undocumented public name fails the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+) (?:(?:file|entry)=(\S+)|\w+)$", re.MULTILINE)
"""A block that a test writes into a file, or expects to be refused."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """```python file=x.py  ->  ```python title="x.py";   ```python refused  ->  ```python."""
    return FENCE.sub(_fence, markdown)


def _fence(found: re.Match[str]) -> str:
    file = found[2] or ""
    return f"```{found[1]}" + (f' title="{file}"' if "." in file else "")


def on_pre_build(**_: Any) -> None:
    """Raises PluginError for names in ``__all__`` of a module of the reference that have no docstring."""
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    modules = re.findall(r"^::: ([\w.]+)$", page, flags=re.MULTILINE)
    package = griffe.load("taskmap", search_paths=[str(ROOT)], resolve_aliases=True)
    if missing := [name for module in modules for name in undocumented(package, module)]:
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")


def undocumented(package: griffe.Object | griffe.Alias, module: str) -> list[str]:
    """The public names of a module that have no docstring, or cannot be found."""
    found = package[module.removeprefix("taskmap.")] if module != "taskmap" else package
    return [f"{module}.{name}" for name in found.exports or () if not _documented(found, str(name))]


def _documented(module: Any, name: str) -> bool:
    try:
        return name in module.members and module.members[name].docstring is not None
    except griffe.AliasResolutionError:
        return False
