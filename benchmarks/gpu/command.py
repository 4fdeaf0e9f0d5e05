"""The options that every part of `make gpu` takes."""

from __future__ import annotations

import argparse
from pathlib import Path


def part_options(doc: str | None, seconds: float, what: str) -> argparse.ArgumentParser:
    """A parser with the time after which no new ``what`` is begun, the folder of results, and whether to go on there.

    doc: the part's own description, shown as it is.
    """
    cli = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seconds", type=float, default=seconds, help=f"after these no new {what} is begun")
    cli.add_argument("--out", type=Path, default=Path("gpu-results"))
    cli.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    return cli
