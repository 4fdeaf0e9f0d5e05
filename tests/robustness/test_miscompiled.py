"""Programs that a C compiler got wrong."""

from __future__ import annotations

import pytest
import torch

from taskmap.torch_backend import compile_fx
from tests.schedules.running import isas

DTYPES = (torch.uint8, torch.int8, torch.int16)


def products(*matrices: torch.Tensor) -> list[torch.Tensor]:
    return [(b := (a > 3).to(a.dtype)) @ b.t() for a in matrices]


@pytest.mark.parametrize("isa", isas())
def test_a_product_of_comparisons_as_integers(isa: str) -> None:
    """gcc 12.2 -O3 gave a wrong last column: its SLP vectoriser, in the reduction over one column of 16."""
    torch._dynamo.reset()
    compiled = torch.compile(products, backend=compile_fx, options={"isa": isa}, dynamic=False)
    matrices = [torch.randint(0, 8, (33, 16), dtype=dtype) for dtype in DTYPES]
    for got, want in zip(compiled(*matrices), products(*matrices), strict=True):
        assert torch.equal(got, want), want.dtype
