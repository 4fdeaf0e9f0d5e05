"""Part of ONNX's own suite: many cases by definition, some compiled. benchmarks/onnx_conformance.py runs all of it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.onnx_conformance import cases, run_case

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
UNSUPPORTED = frozenset({"test_attention_4d_causal_fp16_expanded"})
"""A Softmax in f16. The suite's function body rounds inside it, after the exponentials and after their sum. taskmap
does not, and is closer to the f64 result (the benchmark prints both errors). The operator Attention itself passes."""


def some(step: int, start: int = 0) -> list[Any]:
    listed = [(k, c) for k, c in cases(KINDS) if c.name not in UNSUPPORTED]
    return [pytest.param(k, c, id=c.name) for k, c in listed[start::step]]


@pytest.mark.parametrize(("kind", "case"), some(step=5))
def test_by_definition(kind: str, case: Any) -> None:
    outcome = run_case(kind, case, "definition")
    assert outcome.status in ("passed", "not applicable"), outcome.reason


@pytest.mark.parametrize(("kind", "case"), some(step=40, start=3))
def test_compiled(kind: str, case: Any) -> None:
    outcome = run_case(kind, case, "compiled")
    assert outcome.status in ("passed", "not applicable"), outcome.reason
