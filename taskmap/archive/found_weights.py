"""The weights of a kept model that lie outside its archive: mapped from the model's files, or computed anew."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Mapping

import numpy as np

from taskmap.archive.manifest import Manifest
from taskmap.archive.place import Array, Place, Weights
from taskmap.archive.plan import PlanSizes
from taskmap.backend.program.binding import View
from taskmap.onnx.kept_models import Stamp, stamp_of


def from_files(manifest: Manifest, files: Mapping[str, Stamp | None]) -> Weights:
    """The weights in ``files``, which have these stamps. Raises ValueError if one has another, and OSError."""
    maps = {name: _mapped(name, files.get(name)) for name in {w.file for w in manifest.weights if w.file}}
    found: Weights = {}
    for number, w in enumerate(manifest.weights):
        if w.file:
            found[number] = maps[w.file][w.offset : w.offset + w.bytes]
            if len(found[number]) != w.bytes:
                raise ValueError(f"a weight lies outside {w.file!a}.")
    return found


def _mapped(name: str, stamp: Stamp | None) -> Array:
    """The bytes of a file that has this stamp. The open file is asked, so that no other can take its place."""
    with open(name, "rb") as file:
        if stamp is None or stamp_of(os.fstat(file.fileno())) != stamp:
            raise ValueError(f"{name!a} has changed.")
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def prepared(manifest: Manifest, place: Place, address: Callable[[int], int], new: Callable[[int], Array]) -> Weights:
    """The weights that the manifest's ``prepare`` makes of others, which begin at ``address`` of their numbers; ``new``
    gives memory. Raises ValueError for a plan that contradicts itself."""
    plan = manifest.prepare
    if plan is None:
        return {}
    numbers = [slot - plan.weights_from for slot in plan.binding.constants]
    if any(manifest.weights[n].made for n in numbers):
        raise ValueError("a weight is made of others that are made.")
    resolved = PlanSizes(plan, (), manifest.weights).resolve(())
    if resolved is None:
        raise ValueError("the plan that makes weights has symbolic sizes.")
    results = [new(size) for size in resolved.made]
    if plan.program.steps:
        place.run(place.executable(plan), plan.binding.io, [], results, (), array("q", map(address, numbers)))
    found: Weights = {}
    for number, w in enumerate(manifest.weights):
        if not w.made:
            continue
        view, (_, _, offset) = plan.binding.outputs[w.offset], resolved.outputs[w.offset]
        assert isinstance(view, View)
        assert view.spec is not None
        start = offset * view.spec.dtype.bytes
        found[number] = results[view.slot][start : start + w.bytes]
        if len(found[number]) != w.bytes:
            raise ValueError("a weight is larger than the prepared tensor.")
    return found
