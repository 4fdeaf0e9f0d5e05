"""Variants of a model by ONNX Runtime's own tools: quantised in four ways, halved, optimised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

from benchmarks.zoo.entries import HALVES, INTEGERS, Array, Entry
from taskmap.backend.cpu.host import detect_host

Make = Callable[[Entry, Path], Entry]


class _Once:
    """Calibration data: the inputs of the entry, once."""

    def __init__(self, feeds: dict[str, Array]) -> None:
        self.rest: Iterator[dict[str, Array]] = iter([feeds])

    def get_next(self) -> dict[str, Array] | None:
        """The next inputs, or None."""
        return next(self.rest, None)


def _variant(entry: Entry, folder: Path, kind: str, allowed: float) -> Entry:
    path = folder / f"{entry.name}-{kind}.onnx"
    return replace(entry, name=f"{entry.name}, {kind}", kind=kind, path=path, exact=None, allowed=allowed)


def dynamic(entry: Entry, folder: Path) -> Entry:
    """Weights of eight bits, activations quantised while the model runs. Without VNNI, ONNX Runtime adds two products
    in sixteen bits with saturation, and its documentation advises weights of seven."""
    made = _variant(entry, folder, "dynamic", INTEGERS)
    seven = not any("vnni" in feature for feature in detect_host().features)
    import_module("onnxruntime.quantization").quantize_dynamic(entry.path, made.path, reduce_range=seven)
    return made


def _static(entry: Entry, folder: Path, kind: str) -> Entry:
    tools: Any = import_module("onnxruntime.quantization")
    made = _variant(entry, folder, kind.lower(), INTEGERS)
    ready = folder / f"{entry.name}-ready.onnx"
    import_module("onnxruntime.quantization.shape_inference").quant_pre_process(
        str(entry.path), str(ready), skip_symbolic_shape=True
    )
    data = type("Reader", (_Once, tools.CalibrationDataReader), {})(entry.feeds)
    bits = tools.QuantType.QInt8 if kind == "QDQ" else tools.QuantType.QUInt8
    settings = {"activation_type": bits, "weight_type": bits, "per_channel": kind == "QDQ"}
    tools.quantize_static(ready, made.path, data, quant_format=tools.QuantFormat[kind], **settings)
    return made


def operators(entry: Entry, folder: Path) -> Entry:
    """Operators on quantised tensors, calibrated on the inputs."""
    return _static(entry, folder, "QOperator")


def pairs(entry: Entry, folder: Path) -> Entry:
    """Pairs of QuantizeLinear and DequantizeLinear around every operator, calibrated on the inputs."""
    return _static(entry, folder, "QDQ")


def blocks(entry: Entry, folder: Path) -> Entry:
    """Weights of four bits in blocks."""
    made = _variant(entry, folder, "4-bit", INTEGERS)
    tools: Any = import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    quantizer = tools.MatMulNBitsQuantizer(onnx.load(entry.path), block_size=32, is_symmetric=True)
    quantizer.process()
    onnx.save(quantizer.model.model, made.path)
    return made


def halved(entry: Entry, folder: Path) -> Entry:
    """Arithmetic of sixteen bits, inputs and results of thirty-two."""
    made = _variant(entry, folder, "fp16", HALVES)
    tools: Any = import_module("onnxruntime.transformers.float16")
    onnx.save(tools.convert_float_to_float16(onnx.load(entry.path), keep_io_types=True), made.path)
    return made


def fused(entry: Entry, folder: Path) -> Entry:
    """Attention, norms and activations joined by the tool for transformers."""
    made = _variant(entry, folder, "fused", entry.allowed)
    tools: Any = import_module("onnxruntime.transformers.optimizer")
    tools.optimize_model(str(entry.path), "bert", num_heads=4, hidden_size=128, opt_level=1).save_model_to_file(
        str(made.path)
    )
    return replace(made, exact=entry.exact)


def optimised(entry: Entry, folder: Path) -> Entry:
    """The graph as the runtime writes it after its extended optimisations."""
    made = _variant(entry, folder, "optimised", entry.allowed)
    ort: Any = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(made.path)
    ort.InferenceSession(str(entry.path), options, providers=["CPUExecutionProvider"])
    return replace(made, exact=entry.exact)


VARIANTS: dict[str, tuple[Make, ...]] = {
    "tagger": (dynamic, optimised),
    "scorer": (dynamic, halved, optimised),
    "detector": (pairs, halved, optimised),
    "messages": (dynamic, optimised),
    "encoder": (dynamic, operators, pairs, blocks, halved, fused, optimised),
    "classifier": (dynamic, operators, pairs, halved, optimised),
}
"""For each network what is made of it."""


def variants(entry: Entry, folder: Path) -> list[Entry]:
    """The entry, and its variants."""
    for name in ("root", "onnxruntime"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return [entry, *(make(entry, folder) for make in VARIANTS[entry.name])]
