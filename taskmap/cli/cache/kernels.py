"""`taskmap cache ... --kernels`: the store of compiled kernels."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

from taskmap.backend.store import inventory
from taskmap.backend.store.limit import VARIABLE, size_limit
from taskmap.backend.store.objects import KernelStore, default_path
from taskmap.cli.output import answer, plain, print_json, size, table
from taskmap.ir.errors import TuningError
from taskmap.tuning.record import DAY


def show(a: argparse.Namespace) -> int:
    """List the objects of the store, sorted by size or by use."""
    objects = _chosen(inventory.stored_objects(_root(a)), a)
    objects.sort(key=lambda o: (-o.bytes if a.sort == "size" else -o.used, str(o.path)))
    shown = objects[: a.limit]
    if a.json:
        print_json([_content(o) for o in shown])
        return 0
    rows = [(_names(o), str(len(o.symbols)), size(o.bytes), _ago(o.used), o.isa) for o in shown]
    if rows:
        print(table(("kernels", "count", "size", "used", "for"), rows))
    print(
        f"{len(objects)} objects, {sum(len(o.symbols) for o in objects)} kernels, {size(sum(o.bytes for o in objects))}"
    )
    return 0


def stats(a: argparse.Namespace) -> int:
    """Show the contents of the store in numbers."""
    root = _root(a)
    objects, tasks = inventory.stored_objects(root), inventory.task_files(root)
    held, limit = sum(o.bytes for o in objects), size_limit()
    kernels, unreachable = sum(len(o.symbols) for o in objects), sum(not o.symbols for o in objects)
    of_tasks = sum(t.bytes for t in tasks)
    content = {
        "path": str(root), "objects": len(objects), "kernels": kernels, "bytes": held, "unreachable": unreachable,
        "tasks": len(tasks), "task_bytes": of_tasks, "limit": limit,
    }  # fmt: skip
    text = (
        f"{root}: {kernels} kernels in {len(objects)} objects, {size(held)}; {unreachable} unreachable objects; "
        f"{len(tasks)} scheduled tasks, {size(of_tasks)}\n"
        f"limit: {'none' if limit is None else size(limit)} ({VARIABLE})"
    )
    answer(a.json, content, text)
    return 0


def verify(a: argparse.Namespace) -> int:
    """Check every object's checksum and remove damaged objects; 1 if there were any."""
    if a.measure is not None:
        raise TuningError("kernels are not measured", hint="taskmap cache verify --measure N measures records.")
    root = _root(a)
    bad = inventory.damaged(root)
    inventory.remove(o for o in inventory.stored_objects(root) if o.path in bad)
    stray = _remove_stray(root)
    left = [p for p in (*bad, *stray) if p.exists()]
    count = len(inventory.stored_objects(root)) - sum(p in bad for p in left)
    if a.json:
        print_json({"objects": count, "removed": [str(p) for p in (*bad, *stray)], "left": [str(p) for p in left]})
        return 1 if bad or stray else 0
    print(f"{count} objects are sound, {len(bad)} were damaged and {_are(bad, left)}")
    if stray:
        print(f"{len(stray)} entries of the index were damaged or unreachable, and {_are(stray, left)}")
    return 1 if bad or stray else 0


def prune(a: argparse.Namespace) -> int:
    """Remove the least recently used objects."""
    if a.older is None and a.max_size is None:
        raise TuningError("nothing is selected for removal", hint="Use --older DAYS or --max-size SIZE.")
    if a.max_records is not None:
        raise TuningError(
            "kernels are limited by size, not by number", hint="Use --max-size, or --max-records without --kernels."
        )
    root = _root(a)
    objects, tasks = inventory.stored_objects(root), inventory.task_files(root)
    eligible = [*_chosen(objects, a), *([] if _narrows(a) else tasks)]
    every = sorted(eligible, key=lambda o: (o.used, str(o.path)))
    oldest = None if a.older is None else time.time() - a.older * DAY
    gone = inventory.outdated(every, oldest, a.max_size)
    freed = sum(o.bytes for o in gone) if a.dry_run else inventory.remove(gone)
    left = sum(o.bytes for o in (*objects, *tasks)) - freed
    known = set(tasks)
    of_tasks = sum(o in known for o in gone)
    count, done = len(gone) - of_tasks, "would be removed" if a.dry_run else "removed"
    content = {"objects": count, "tasks": of_tasks, "bytes": freed, "left_bytes": left, "dry_run": a.dry_run}
    text = f"{count} objects and {of_tasks} scheduled tasks, {size(freed)}, {done}; {size(left)} left"
    answer(a.json, content, text)
    return 0


def clear(a: argparse.Namespace) -> int:
    """Remove all kernels and scheduled tasks."""
    if not a.yes:
        raise TuningError("this removes all compiled kernels", hint="Add --yes. They are compiled again when needed.")
    root = _root(a)
    freed, tasks = inventory.remove(inventory.stored_objects(root)), inventory.task_files(root)
    inventory.remove(tasks)
    _remove_stray(root)
    count = len(tasks) - len(inventory.task_files(root))
    left = sum(o.bytes for o in (*inventory.stored_objects(root), *inventory.task_files(root)))
    more = f"\n{size(left)} could not be removed" if left else ""
    text = f"{size(freed)} of kernels and {count} scheduled tasks removed{more}"
    answer(a.json, {"bytes": freed, "tasks": count, "left_bytes": left}, text)
    return 1 if left else 0


def _remove_stray(root: Path) -> list[Path]:
    stray = inventory.stray_entries(root)
    for path in stray:
        with contextlib.suppress(OSError):
            path.unlink()
    return stray


def _narrows(a: argparse.Namespace) -> bool:
    """True if options select among kernels; options that select only records are refused."""
    for option in ("shapes", "dtypes", "layout", "verdict", "stale"):
        if getattr(a, option) is not None:
            raise TuningError(f"--{option} selects records, not kernels", hint="Use --name or --target with --kernels.")
    return a.name is not None or a.target is not None


def _chosen(objects: list[inventory.StoredObject], a: argparse.Namespace) -> list[inventory.StoredObject]:
    if not _narrows(a):
        return objects
    named = (o for o in objects if a.name is None or any(a.name in symbol for symbol in o.symbols))
    return [o for o in named if a.target is None or a.target in o.isa]


def _are(found: list[Path], left: list[Path]) -> str:
    return "cannot be removed" if any(path in left for path in found) else "have been removed"


def _root(a: argparse.Namespace) -> Path:
    root: Path = default_path() if a.cache_dir is None else a.cache_dir.absolute()
    return KernelStore(root).path if root.exists() else root  # refuses a folder that is not private to the user


def _names(o: inventory.StoredObject) -> str:
    names = ", ".join(sorted(plain(s) for s in o.symbols)[:2])
    return f"{names}, ..." if len(o.symbols) > 2 else names or "(unreachable)"


def _ago(used: float) -> str:
    hours = max(0.0, time.time() - used) / 3600
    return f"{hours / 24:.0f} d ago" if hours >= 48 else f"{hours:.1f} h ago"


def _content(o: inventory.StoredObject) -> dict[str, object]:
    shown = {"object": str(o.path), "bytes": o.bytes, "used": o.used, "kernels": list(o.symbols)}
    return {**shown, "isa": o.isa, "compiler": o.compiler}
