"""A reader of archives for the CPU, written from docs/archive-format.md alone: it imports nothing of taskmap."""

from __future__ import annotations

import ctypes
import json
import math
import operator
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

HELD = ["f64", "f32", "f16", "i64", "i32", "i16", "i8", "u8", "bool"]
TYPES = dict(zip(HELD, ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?"], strict=True))
OPERATIONS = {name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod")}


def size(s: Any, known: Mapping[str, int]) -> int:
    """A size: a number, a name, or an operation on sizes."""
    if isinstance(s, (int, str)):
        return known[s] if isinstance(s, str) else s
    return int(reduce(OPERATIONS[s[0]], [size(part, known) for part in s[1:]]))


class Reader:
    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as file:
            self.manifest = json.loads(file.read("manifest.json"))
            self.weights = np.frombuffer(bytearray(file.read("weights.bin")) + bytearray(64), np.uint8)
            ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
            objects = sorted(self.manifest["objects"], key=lambda o: "tm_parallel_1" not in o["symbols"])
            self.symbols: dict[str, int] = {}
            self.libraries = []
            for o in objects:
                with tempfile.NamedTemporaryFile(suffix=".so") as copy:
                    copy.write(file.read(o["entry"]))
                    copy.flush()
                    self.libraries.append(ctypes.CDLL(copy.name, mode=ctypes.RTLD_GLOBAL))
                for s in o["symbols"]:
                    self.symbols[s] = ctypes.cast(getattr(self.libraries[-1], s), ctypes.c_void_p).value or 0

    def __call__(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        plan = next(p for p in self.manifest["plans"] if self.fits(p, inputs))
        known = {name: inputs[i].shape[axis] for name, (i, axis) in plan["sizes"].items()}
        made = [np.empty([size(n, known) for n in t["shape"]], TYPES[t["held"]]) for t in plan["made"]]
        behind = {"input": list(inputs), "made": made}
        io = [behind[kind][i].ctypes.data for kind, i in plan["io"]]
        constants = [self.weights.ctypes.data + self.manifest["weights"][w]["offset"] for w in plan["constants"]]
        kernels = [self.symbols[k] for k in dict.fromkeys(s["kernel"] for s in plan["steps"])]
        needed = sum(size(r["factor"], known) * r["units"] for r in plan["regions"])
        block = np.empty(needed + 64, np.uint8)
        arena = -(-block.ctypes.data // 64) * 64
        tables = [(ctypes.c_longlong * max(len(t), 1))(*t) for t in (io, constants, kernels, list(known.values()))]
        for launch in plan["launch"]:
            run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)(self.symbols[launch])
            assert run(arena, *map(ctypes.addressof, tables)) == 0, "an index is out of range"
        return [behind[kind][i] for kind, i in (o["source"] for o in plan["outputs"])]

    def fits(self, plan: Mapping[str, Any], inputs: Sequence[np.ndarray[Any, Any]]) -> bool:
        known = {name: inputs[i].shape[axis] for name, (i, axis) in plan["sizes"].items()}
        shapes = [tuple(size(n, known) for n in shape) for shape in plan["shapes"]]
        return shapes == [x.shape for x in inputs] and math.prod(size(n, known) for n in plan["positive"]) > 0
