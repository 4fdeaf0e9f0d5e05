"""Mutated ONNX models: each must give a clear error or a result, and neither crash, hang, nor eat the memory.

    python benchmarks/onnx_fuzz.py --count 10000 --seed 0

Models are mutated byte by byte and field by field, read, and run by their definitions (every --compile-th is compiled).
They run in child processes with limits of memory and time; the counts are printed, and what was not clear is shown.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto

from taskmap.ir.errors import TaskmapError
from taskmap.onnx_engines import by_definition
from taskmap.onnx_model import OnnxModel, load_model
from tests.onnx.models import EXAMPLES

CASE_SECONDS = 60
MEMORY = 12 << 30
"""Bytes of address space; importing torch takes about half of it."""
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), -5)
NAMES = ('"', "*/", "\n", "%s%n%d", "x", "", "a" * 5000, "\\", "'; DROP", "\u202e", "../../etc/passwd", "{0}", "$(id)")


def mutated(seed: int) -> tuple[bytes, dict[str, Any]]:
    """A model with a few mutations, as bytes, and inputs for the model that it was."""
    rng = random.Random(seed)
    proto, inputs = EXAMPLES[rng.choice(list(EXAMPLES))]()
    if rng.random() < 0.35:
        return _bytes(rng, proto.SerializeToString()), inputs
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(MUTATIONS)(rng, proto)
    return proto.SerializeToString(), inputs


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
        attribute.i = rng.choice(NUMBERS)
        attribute.f = rng.choice((0.0, 1e30, -1.0, float("nan"), float("inf"), 0.5))
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
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


def attempt(seed: int, compiled: bool) -> tuple[str, str]:
    """What a mutated model leads to: an error's class, or "result"; and what is wrong with that, if anything is."""
    data, inputs = mutated(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = load_model(data) if compiled else load_model(data, engine=by_definition)
            model(*_inputs(model, inputs))
        except TaskmapError as error:
            text = str(error)
            clear = text.startswith("taskmap: ") and len(text) < 100_000
            return type(error).__name__, "" if clear else f"an unclear message: {text[:200]}"
        except MemoryError:
            return "MemoryError", "the memory ran out"
        except Exception as error:
            return type(error).__name__, f"{type(error).__name__}: {error}"
    return "result", ""


def _inputs(model: OnnxModel, inputs: dict[str, Any]) -> list[Any]:
    values = list(inputs.values())
    return values[: len(model.inputs)]


def _child(pipe: Connection, every: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while True:
        seed = pipe.recv()
        if seed is None:
            return
        pipe.send(attempt(seed, compiled=every > 0 and seed % every == 0))


def run(first: int, count: int, every: int = 0) -> tuple[Counter[str], list[tuple[int, str]]]:
    """The outcomes of ``count`` seeds from ``first`` on, and the seeds that went wrong with the reason."""
    context = multiprocessing.get_context("spawn")
    outcomes: Counter[str] = Counter()
    wrong: list[tuple[int, str]] = []
    child = pipe = None
    for seed in range(first, first + count):
        if child is None:
            pipe, other = context.Pipe()
            child = context.Process(target=_child, args=(other, every), daemon=True)
            child.start()
            other.close()
        assert pipe is not None
        try:
            pipe.send(seed)
            result = pipe.recv() if pipe.poll(CASE_SECONDS) else ("hang", f"no answer within {CASE_SECONDS} s")
        except (EOFError, OSError):
            child.join(5)
            result = ("crash", f"the process ended with {child.exitcode}")
        outcomes[result[0]] += 1
        if result[1]:
            wrong.append((seed, result[1]))
            print(f"seed {seed}: {result[1]}", flush=True)
        if result[0] in ("hang", "crash"):
            child.kill()
            child.join()
            child = None
    if child is not None and pipe is not None:
        pipe.send(None)
        child.join()
    return outcomes, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--compile", type=int, default=50, help="compile every so many models; 0 for none")
    parser.add_argument("--write", type=Path, help="a file for the counts")
    args = parser.parse_args()
    outcomes, wrong = run(args.seed, args.count, args.compile)
    for name, number in outcomes.most_common():
        print(f"{number:7} {name}")
    print(f"{len(wrong)} of {args.count} neither a result nor a clear error")
    if args.write is not None:
        record = {"onnx": onnx.__version__, "count": args.count, "first_seed": args.seed, "outcomes": dict(outcomes)}
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(json.dumps({**record, "wrong": wrong}, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
