"""Options that several commands have; each means the same in all of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from taskmap.options import ISAS


def cache_dir_option(p: argparse.ArgumentParser) -> None:
    """--cache-dir: what Options calls cache_dir."""
    text = "the folder of compiled kernels and of what tuning has found; else $TASKMAP_CACHE_DIR, or the user's"
    p.add_argument("--cache-dir", type=Path, metavar="FOLDER", help=text)


def isa_option(p: argparse.ArgumentParser) -> None:
    """--isa: what Options calls isa."""
    p.add_argument("--isa", choices=ISAS, help="vector instructions of kernels for the CPU; else the best there are")


def folder_of(a: argparse.Namespace) -> str | None:
    """The folder that --cache-dir says, as Options takes it."""
    return None if a.cache_dir is None else str(a.cache_dir)
