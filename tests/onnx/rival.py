"""ONNX Runtime and taskmap side by side on models of one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model

Array = NDArray[Any]
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """One call of an operator. ``stored`` names inputs that are part of the model; None stands for a missing input."""

    op: str
    inputs: Mapping[str, Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: int = 1
    stored: Sequence[str] = ()
    near: float = 2e-5
    steps: int = 0
    """The allowed difference of integer results: between two neighbours, implementations round either way."""
    domain: str = MICROSOFT
    name: str = ""
    compared: int | None = None
    """The number of results compared; beyond it (in a cache, for one) implementations leave arbitrary values."""

    def __str__(self) -> str:
        return f"{self.op}-{self.name}" if self.name else self.op

    def feeds(self) -> dict[str, Array]:
        """The inputs of the model."""
        return {k: v for k, v in self.inputs.items() if v is not None and k not in self.stored}

    def model(self, symbolic: bool = False) -> onnx.ModelProto:
        """The model, with sizes or with a name for each size."""
        node = helper.make_node(
            self.op,
            [k if v is not None else "" for k, v in self.inputs.items()],
            [f"result_{i}" for i in range(self.results)],
            domain=self.domain,
            **self.attributes,
        )
        ports = []
        for name, value in self.feeds().items():
            elem = helper.np_dtype_to_tensor_dtype(value.dtype)
            shape = [f"{name}_{i}" if symbolic else n for i, n in enumerate(value.shape)]
            ports.append(helper.make_tensor_value_info(name, elem, shape))
        graph = helper.make_graph(
            [node],
            "g",
            ports,
            [onnx.ValueInfoProto(name=n) for n in node.output],
            [onnx.numpy_helper.from_array(v, k) for k, v in self.inputs.items() if v is not None and k in self.stored],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def onnxruntime_results(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any]:
    """The outputs of ONNX Runtime, unoptimised."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def compare(case: Case, compiled: bool = False) -> None:
    """Raises AssertionError if the two differ by more than rounding."""
    model, feeds = case.model(), case.feeds()
    theirs = onnxruntime_results(model, feeds)
    ours = load_model(model, engine=None if compiled else by_definition)(feeds)
    for a, b in zip(ours[: case.compared], theirs[: case.compared], strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype.kind in "iub":
            assert np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0) <= case.steps
        else:
            known = b.astype(np.float64)
            scale = max(float(np.abs(known[np.isfinite(known)]).max(initial=0)), 1.0)
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=case.near, atol=case.near * scale
            )
