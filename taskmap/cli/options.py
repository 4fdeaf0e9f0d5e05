"""Options shared by several commands, with the same meaning in all of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from taskmap.options import ISAS


def cache_dir_option(p: argparse.ArgumentParser) -> None:
    """Add --cache-dir, the cache_dir of Options."""
    text = "the folder of compiled kernels and tuning records (default: $TASKMAP_CACHE_DIR, or the user's)"
    p.add_argument("--cache-dir", type=Path, metavar="FOLDER", help=text)


def isa_option(p: argparse.ArgumentParser) -> None:
    """Add --isa, the isa of Options."""
    p.add_argument("--isa", choices=ISAS, help="vector instructions of CPU kernels (default: the best available)")


def folder_of(a: argparse.Namespace) -> str | None:
    """The folder given by --cache-dir, in the form that Options accepts."""
    return None if a.cache_dir is None else str(a.cache_dir)
