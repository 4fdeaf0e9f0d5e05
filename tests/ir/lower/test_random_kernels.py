"""Lowering preserves the semantics of random kernels, pass by pass, and its results pass the verifier."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir.interp.run import interpret
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.verify.rules import LOWERED, RULES, verify
from tests.ir.random_kernels import COLS, ROWS, kernels


@settings(max_examples=40)
@given(kernels(), st.integers(0, 2**32 - 1))
def test_every_stage_computes_the_same(kernel: Kernel, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((ROWS, COLS)).astype(np.float32)
    stages = [kernel]
    lower(kernel, lambda step: stages.append(step.after), verify=True)
    assert len(stages) > 1
    results = []
    for stage in stages:
        verify(stage, RULES)
        given_x = x if stage.buffers[0].rank == 2 else x.ravel()
        inputs = {stage.buffers[0]: given_x}
        results.append(interpret(stage, inputs, dict.fromkeys(stage.dims, ROWS))[stage.outputs[0]].ravel())
    verify(stages[-1], LOWERED)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
