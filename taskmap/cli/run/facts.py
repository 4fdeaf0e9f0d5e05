"""The report of `taskmap run` on a model or an archive: inputs, outputs, times, comparisons."""

from __future__ import annotations

import argparse
import json
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.cli.output import duration, paint, plain, table
from taskmap.cli.run.compare import Comparison
from taskmap.ir.errors import InputError, TaskmapError
from taskmap.ir.util.atomic_write import replaced, write_output

Array = NDArray[Any]


def timed(call: Callable[[], object]) -> float:
    """The duration of ``call`` in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def facts_of(
    inputs: Mapping[str, Array], outputs: Mapping[str, Any], first: float, times: Sequence[float],
    assumed: Mapping[str, int], verdicts: Sequence[Comparison],
) -> dict[str, Any]:  # fmt: skip
    """The facts of a run as JSON data: ``first`` and ``times`` in seconds."""
    return {
        "inputs": {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in inputs.items()},
        "assumed": dict(assumed),
        "outputs": {name: _summary(x) for name, x in outputs.items()},
        "first_result_seconds": first,
        "seconds": {
            "median": _percentile(times, 50),
            **{f"p{p}": _percentile(times, p) for p in (50, 90, 99)},
            "fastest": min(times),
            "slowest": max(times),
            "runs": len(times),
            "per_second": len(times) / max(sum(times), 1e-12),
        },
        "compared": [
            {
                "output": v.name,
                "equal": v.equal,
                "absolute": v.absolute,
                "relative": v.relative,
                "differing": v.differing,
                "why": v.why,
            }
            for v in verdicts
        ],
    }


def _percentile(values: Sequence[float], percent: int) -> float:
    """The percentile, interpolated as numpy.percentile's, which would import numpy.ma: 0.02 s before a first result."""
    ordered = sorted(values)
    below, part = divmod(percent * (len(ordered) - 1), 100)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * part / 100


def _summary(x: Any) -> dict[str, Any]:
    if not isinstance(x, np.ndarray):
        return {"kind": type(x).__name__, "length": len(x) if hasattr(x, "__len__") else None}
    found: dict[str, Any] = {"shape": list(x.shape), "dtype": str(x.dtype)}
    if x.size and x.dtype.kind in "biuf":
        # Without a copy in f64: the logits of a language model are as large as a layer's weights.
        found |= {"min": float(x.min()), "max": float(x.max()), "mean": float(x.mean(dtype=np.float64))}
        found["nan"] = int(np.count_nonzero(np.isnan(x))) if x.dtype.kind == "f" else 0
    return found


def print_facts(facts: Mapping[str, Any], verdicts: Sequence[Comparison], a: argparse.Namespace) -> None:
    """Print the same facts for people."""
    for name, n in facts["assumed"].items():
        print(f"the dimension {plain(name)} is assumed to be {n} (--shape {plain(name)}=...)")
    rows: list[tuple[str, ...]] = [
        ("in", name, f"{x['dtype']}{x['shape']}", "", "", "") for name, x in facts["inputs"].items()
    ]
    for name, x in facts["outputs"].items():
        figures = [f"{x[key]:.6g}" if key in x else "" for key in ("min", "mean", "max")]
        rows.append(("out", name, f"{x['dtype']}{x['shape']}" if "dtype" in x else x["kind"], *figures))
    print(table(("", "name", "type", "min", "mean", "max"), rows, left=3))
    s = facts["seconds"]
    print(f"first result after {duration(facts['first_result_seconds'])}; then {duration(s['median'])}, "
          f"{duration(s['fastest'])} to {duration(s['slowest'])} in {s['runs']} runs")  # fmt: skip
    if s["runs"] > 1:
        shares = ", ".join(f"p{p} {duration(s[f'p{p}'])}" for p in (50, 90, 99))
        print(f"{shares}; {s['per_second']:.4g} runs per second")
    for v in verdicts:
        word = paint("equal", "green") if v.equal else paint("different", "red")
        why = (
            v.why
            or f"largest error {v.absolute:.3g}, {v.relative:.3g} of the largest value; {v.differing} elements differ"
        )
        print(f"{plain(v.name)}: {word} to {a.compare}: {why}")
    if a.save is not None:
        print(f"outputs written to {a.save}")


@contextmanager
def saying_assumed(assumed: Mapping[str, int]) -> Iterator[None]:
    """An error within the block is preceded by the sizes assumed for dimensions without a given size: they may be its
    cause."""
    try:
        yield
    except TaskmapError:
        for name, n in assumed.items():
            text = f"taskmap: the dimension {plain(name)} was assumed to be {n} (--shape {plain(name)}=...)"
            print(text, file=sys.stderr)
        raise


def graph_facts(
    made: int, general: int, prevented_by: Sequence[str] = (), on_host: Sequence[str] = ()
) -> dict[str, Any]:
    """JSON data on graphs: their number, and how many of them are valid for many sizes."""
    return {
        "made": made, "for_many_sizes": general, "prevented_by": list(prevented_by), "on_host": list(on_host),
    }  # fmt: skip


def graph_count(made: int, general: int, is_open: bool) -> str:
    """The same for people. ``is_open``: the model leaves sizes open."""
    text = f"{made} graph{'' if made == 1 else 's'}"
    if not is_open:
        return text
    return text + (", for all sizes" if general == made else ": another size costs a compilation")


def write_trace(path: Path, graphs: Sequence[Sequence[tuple[str, float]]]) -> None:
    """Chrome's trace events of graphs that ran one after the other: the name of each step, and its seconds.

    Raises InputError if it cannot be written.
    """
    events: list[dict[str, object]] = []
    now = 0.0
    for number, steps in enumerate(graphs):
        for name, took in steps:
            events.append({"name": name, "ph": "X", "pid": number, "tid": 0, "ts": now * 1e6, "dur": took * 1e6})
            now += took
    write_output(path, json.dumps({"traceEvents": events}), "the trace")


def save(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write the outputs as .npz, atomically; the tensors of a sequence as NAME.0, NAME.1, ...

    Raises InputError if it cannot be written, and for an output that is not a tensor of numbers.
    """
    try:
        with replaced(path, durable=True) as file, zipfile.ZipFile(file, "w") as archive:
            for name, x in outputs.items():  # not np.savez, which rejects an array called "file"
                for part, array in _parts(name, x):
                    with archive.open(f"{part}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
    except OSError as error:
        raise InputError(f"outputs cannot be written to {path}", why=f"{error}.") from error
    except ValueError as error:
        raise InputError(
            f"outputs cannot be written to {path}", why="one of them is not a tensor of numbers."
        ) from error


def _parts(name: str, x: Any) -> list[tuple[str, Array]]:
    if isinstance(x, (list, tuple)):
        return [part for i, item in enumerate(x) for part in _parts(f"{name}.{i}", item)]
    return [] if x is None else [(name, np.asarray(x))]
