"""Five networks, small, run whole on the simulated GPU: no operator is left to PyTorch, and results are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import taskmap
from benchmarks.models import MODELS, as_tensors, relative_error, to_float64
from tests.taskmap.compare import compiled, since

NAMES = ("resnet50", "mobilenet_v2", "bert_base", "gpt2", "llama")
LONG = ("f32-resnet50", "f32-mobilenet_v2")
"""Cases that run under --long only: they take longest, and the same networks run in f16."""
MOST = 4.0
"""The largest error allowed, as a multiple of that of eager PyTorch in single precision."""
ROUNDING = torch.finfo(torch.float32).eps / 2
TOLERANCE = 2e-2
"""Of half precision, rounded after each operator; a ResNet without trained normalisation amplifies that."""


def cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


KINDS = {"f32": (torch.float32, "sm_80"), "f16": (torch.float16, "sm_90a")}
CASES = [(f"{kind}-{name}", name, *KINDS[kind]) for kind in KINDS for name in NAMES]


@pytest.mark.parametrize(
    ("name", "dtype", "gpu"),
    [pytest.param(*case, id=text, marks=pytest.mark.long if text in LONG else ()) for text, *case in CASES],
)
def test_a_network(name: str, dtype: torch.dtype, gpu: str) -> None:
    module, args, kwargs = MODELS[name].build(seed=0, small=True)
    wide, wide_args = to_float64(module, args)
    with torch.no_grad():
        eager = relative_error(as_tensors(module(*args, **kwargs)), as_tensors(wide(*wide_args, **kwargs)))
    module, args = module.to(dtype), tuple(cast(a, dtype) for a in args)
    before = taskmap.metrics()
    with torch.no_grad():
        got = compiled(module, options={"target": "cuda-sim", "gpu": gpu})(*args, **kwargs)
        want = wide(*wide_args, **kwargs)
    counts = since(before)
    assert (counts.externs, counts.fallbacks, counts.groups_split) == (0, 0, 0)
    limit = MOST * max(eager, ROUNDING) if dtype == torch.float32 else TOLERANCE
    assert relative_error(as_tensors(got), as_tensors(want)) <= limit
