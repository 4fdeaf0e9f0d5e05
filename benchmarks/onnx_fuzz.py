"""Mutated ONNX models: each must give a clear error or a right result, and must not crash, hang, or exhaust the memory.

    python benchmarks/onnx_fuzz.py --count 10000 --seed 0

Models are mutated byte by byte and field by field, read, and run by their definitions (every --compile-th is compiled).
They run in child processes with limits of memory and time. Results are compared with ONNX's reference evaluator and
ONNX Runtime (support/onnx_verdict.py). The counts are printed, and every other outcome is shown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto

from benchmarks.onnx_conformance import cases
from benchmarks.support.onnx_verdict import REFERENCES, verdict
from benchmarks.support.patience import answers
from taskmap.ir.errors import TaskmapError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import EXAMPLES

Answer = tuple[bytes, dict[str, Any], list[Any]]
"""A model, its inputs, and taskmap's results."""
CASE_SECONDS = 60
MEMORY = 12 << 30
"""Bytes of address space; importing torch takes about half of it."""
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), -5)
NAMES = ('"', "*/", "\n", "%s%n%d", "x", "", "a" * 5000, "\\", "'; DROP", "\u202e", "../../etc/passwd", "{0}", "$(id)")


OWN = 0.3
"""The part of models that are taken from the tests rather than from ONNX's own suite, where both are."""


@lru_cache(maxsize=1)
def suite() -> list[Any]:
    """The cases of single operators in ONNX's own suite whose inputs are tensors of numbers."""
    return [c for _, c in cases(("node",)) if c.data_sets and all(_is_plain(v) for v in c.data_sets[0][0])]


def _is_plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != object


def base(rng: random.Random, from_suite: bool) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model that may be changed, and inputs for it."""
    if not from_suite or rng.random() < OWN:
        return EXAMPLES[rng.choice(list(EXAMPLES))]()
    case = rng.choice(suite())
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    return proto, dict(zip([p.name for p in proto.graph.input], case.data_sets[0][0], strict=False))


def mutated(seed: int, from_suite: bool = False) -> tuple[bytes, dict[str, Any]]:
    """A model with a few mutations, as bytes, and inputs for the model that it was."""
    rng = random.Random(seed)
    proto, inputs = base(rng, from_suite)
    if rng.random() < 0.2:
        return proto.SerializeToString(), {name: _special(rng, value) for name, value in inputs.items()}
    if rng.random() < 0.35:
        return _bytes(rng, proto.SerializeToString()), inputs
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(MUTATIONS)(rng, proto)
    return proto.SerializeToString(), inputs


def _special(rng: random.Random, value: Any) -> Any:
    """An input with a few elements that are extreme for their type."""
    if value.size == 0 or value.dtype.kind not in "fiu":
        return value
    changed = value.copy()
    flat = changed.reshape(-1)
    if value.dtype.kind == "f":
        finite = np.finfo(value.dtype)
        extreme = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, float(finite.max), float(finite.tiny), 0.5]
    else:
        limits = np.iinfo(value.dtype)
        extreme = [0, 1, -1 if limits.min < 0 else 2, int(limits.min), int(limits.max)]
    for _ in range(rng.choice((1, 2, 4))):
        flat[rng.randrange(flat.size)] = rng.choice(extreme)
    return changed


def _bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if rng.random() < 0.2:
        return bytes(changed[: rng.randrange(len(changed))])
    for _ in range(rng.choice((1, 2, 8, 32))):
        place = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.6:
            changed[place] = rng.randrange(256)
        elif kind < 0.8:
            del changed[place : place + rng.randrange(1, 9)]
        else:
            changed[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        if not changed:
            return b""
    return bytes(changed)


def _node(rng: random.Random, graph: GraphProto) -> Any:
    return rng.choice(list(graph.node)) if graph.node else None


def _graph(rng: random.Random, proto: onnx.ModelProto) -> GraphProto:
    """The model's graph, or one inside it."""
    graphs = [proto.graph]
    for node in proto.graph.node:
        graphs += [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    return rng.choice(graphs)


def _rewire(rng: random.Random, proto: onnx.ModelProto) -> None:
    graph = _graph(rng, proto)
    node = _node(rng, graph)
    names = [n for other in graph.node for n in [*other.input, *other.output]] + ["missing", ""]
    if node is not None and node.input and rng.random() < 0.7:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif node is not None and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(names)


def _rename(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = _node(rng, _graph(rng, proto))
    if node is not None:
        node.name = rng.choice(NAMES)
        if node.output and rng.random() < 0.5:
            old, new = node.output[0], rng.choice(NAMES)
            for other in proto.graph.node:
                for names in (other.input, other.output):
                    for i, name in enumerate(names):
                        if name == old:
                            names[i] = new


def _operator(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = _node(rng, _graph(rng, proto))
    if node is not None:
        schemas = [s.name for s in onnx.defs.get_all_schemas() if s.domain == ""]
        node.op_type = rng.choice([*schemas, *NAMES])


def _attribute(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = _node(rng, _graph(rng, proto))
    if node is None:
        return
    if node.attribute and rng.random() < 0.8:
        attribute = rng.choice(list(node.attribute))
        if attribute.type != AttributeProto.FLOAT or rng.random() < 0.1:
            attribute.i = rng.choice(NUMBERS)
        if attribute.type != AttributeProto.INT or rng.random() < 0.1:
            attribute.f = rng.choice((0.0, 1e30, -1.0, float("nan"), float("inf"), 0.5))
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
            attribute.ClearField("i")
            attribute.ClearField("f")
        if rng.random() < 0.2:
            attribute.type = rng.choice((1, 2, 3, 4, 5, 6, 7))
    else:
        name = rng.choice(
            ("axis", "axes", "keepdims", "group", "pads", "strides", "kernel_shape", "to", "perm", "block")
        )
        value = rng.choice(([rng.choice(NUMBERS) for _ in range(rng.randrange(4))] or [0], rng.choice(NUMBERS)))
        node.attribute.append(onnx.helper.make_attribute(name, value))


def _tensor(rng: random.Random, proto: onnx.ModelProto) -> None:
    if not proto.graph.initializer:
        return
    tensor = rng.choice(list(proto.graph.initializer))
    kind = rng.random()
    if kind < 0.35 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    elif kind < 0.5:
        tensor.data_type = rng.randrange(0, 26)
    elif kind < 0.65:
        tensor.raw_data = bytes(rng.randrange(256) for _ in range(len(tensor.raw_data)))
    elif kind < 0.75:
        tensor.dims.append(rng.choice(NUMBERS))
    elif kind < 0.9 and tensor.data_type == onnx.TensorProto.INT64:
        count = len(tensor.raw_data) // 8
        tensor.raw_data = np.array([rng.choice(NUMBERS) for _ in range(count)], np.int64).tobytes()
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", rng.choice(["../x", "/etc/passwd", "x", *NAMES])), ("offset", "99999999999")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value


def _port(rng: random.Random, proto: onnx.ModelProto) -> None:
    ports = [*proto.graph.input, *proto.graph.output]
    port = rng.choice(ports)
    if rng.random() < 0.3:
        port.name = rng.choice(NAMES)
        return
    kind = port.type.tensor_type
    if kind.shape.dim and rng.random() < 0.7:
        kind.shape.dim[rng.randrange(len(kind.shape.dim))].dim_value = rng.choice(NUMBERS)
    else:
        kind.elem_type = rng.randrange(0, 26)


def _structure(rng: random.Random, proto: onnx.ModelProto) -> None:
    graph = _graph(rng, proto)
    if not graph.node:
        return
    place = rng.randrange(len(graph.node))
    kind = rng.random()
    if kind < 0.3:
        del graph.node[place]
    elif kind < 0.6:
        graph.node.append(graph.node[place])
    elif kind < 0.8:
        nodes = list(graph.node)
        rng.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    elif proto.opset_import:
        proto.opset_import[0].version = rng.choice((*range(1, 30), *NUMBERS)) % (1 << 63)


MUTATIONS: tuple[Callable[[random.Random, onnx.ModelProto], None], ...] = (
    _rewire,
    _rename,
    _operator,
    _attribute,
    _attribute,
    _tensor,
    _tensor,
    _port,
    _structure,
)


def attempt(seed: int, compiled: bool, from_suite: bool = False) -> tuple[str, str, Answer | None]:
    """The outcome of a mutated model: an error's class, or "result"; its defect, if any; and the
    results, with their inputs."""
    data, inputs = mutated(seed, from_suite)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = load_model(data) if compiled else load_model(data, engine=by_definition)
            feeds = dict(zip([port.name for port in model.inputs], inputs.values(), strict=False))
            results = model(*feeds.values())
        except TaskmapError as error:
            text = str(error)
            clear = text.startswith("taskmap: ") and len(text) < 100_000
            return type(error).__name__, "" if clear else f"an unclear message: {text[:200]}", None
        except MemoryError:
            return "MemoryError", "the memory ran out", None
        except Exception as error:
            return type(error).__name__, f"{type(error).__name__}: {error}", None
    return "result", "", (data, feeds, results)


def _child(pipe: Connection, every: int, compare: bool, from_suite: bool) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while True:
        seed = pipe.recv()
        if seed is None:
            return
        outcome, reason, answer = attempt(seed, every > 0 and seed % every == 0, from_suite)
        pipe.send((outcome, reason, compare and answer is not None))
        if compare and answer is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pipe.send(verdict(*answer))


@dataclass(slots=True)
class Tally:
    """The outcomes of mutated models, the verdicts on results, and the seeds that went wrong, with the reason."""

    outcomes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    others: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, seed: int, outcome: str, reason: str) -> None:
        """Counts the outcome of a model."""
        self.outcomes[outcome] += 1
        if reason:
            self._note(seed, reason)

    def judge(self, seed: int, verdict: str, evidence: str) -> None:
        """Counts the verdict on a result."""
        self.verdicts[verdict] += 1
        if verdict == "wrong":
            self._note(seed, evidence)
        elif verdict != "right":
            self.others.append((seed, verdict, evidence))

    def _note(self, seed: int, reason: str) -> None:
        self.wrong.append((seed, reason))
        print(f"seed {seed}: {reason}", flush=True)


def run(first: int, count: int, every: int = 0, compare: bool = False, from_suite: bool = False) -> Tally:
    """The outcomes of ``count`` seeds from ``first`` on; ``compare`` judges the results.

    Every ``every``-th model is compiled. With ``from_suite`` most models come from ONNX's own suite.
    """
    context = multiprocessing.get_context("spawn")
    tally = Tally()
    child = pipe = None
    for seed in range(first, first + count):
        if child is None:
            pipe, other = context.Pipe()
            child = context.Process(target=_child, args=(other, every, compare, from_suite), daemon=True)
            child.start()
            other.close()
        assert pipe is not None
        answered = False
        try:
            pipe.send(seed)
            result = (
                pipe.recv()
                if answers(pipe, child.pid, CASE_SECONDS)
                else ("hang", f"no answer within {CASE_SECONDS} s", False)
            )
            answered = result[0] != "hang"
            tally.add(seed, result[0], result[1])
            if result[2]:
                answered = answers(pipe, child.pid, CASE_SECONDS)
                tally.judge(seed, *(pipe.recv() if answered else ("unchecked: a reference hung", "")))
        except (EOFError, OSError):
            child.join(5)
            if answered:
                tally.judge(seed, "unchecked: a reference crashed", f"the process ended with {child.exitcode}")
            else:
                tally.add(seed, "crash", f"the process ended with {child.exitcode}")
            answered = False
        if not answered:
            child.kill()
            child.join()
            child = None
    if child is not None and pipe is not None:
        pipe.send(None)
        child.join()
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--compile", type=int, default=50, help="compile every so many models; 0 for none")
    parser.add_argument("--write", type=Path, help="a file for the counts")
    args = parser.parse_args(argv)
    tally = run(args.seed, args.count, args.compile, compare=True, from_suite=True)
    for name, number in tally.outcomes.most_common():
        print(f"{number:7} {name}")
    print("of the results:")
    for name, number in tally.verdicts.most_common():
        print(f"{number:7} {name}")
    print(f"{len(tally.wrong)} of {args.count} neither a right result nor a clear error")
    if args.write is not None:
        record = {
            "onnx": onnx.__version__,
            "references": list(REFERENCES),
            "count": args.count,
            "first_seed": args.seed,
            "compiled_every": args.compile,
            "outcomes": dict(tally.outcomes.most_common()),
            "verdicts": dict(tally.verdicts.most_common()),
            "wrong": tally.wrong,
            "neither_right_nor_wrong": tally.others,
        }
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
