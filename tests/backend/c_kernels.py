"""Small C kernels shared by the tests of compiling, storing and loading."""

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from taskmap.backend.cpu.team import PARALLEL, PARALLEL_DECLARATION
from taskmap.backend.store.key import KernelSource

PRELUDE = (
    f"typedef long long i64;\n{PARALLEL_DECLARATION}\n"
    "struct scales { const float *x; float *y; };\n"
    "static inline float scaled(float x, float by) { return x * by; }\n"
)


def scale_kernel(factor: int, prelude: str = PRELUDE) -> KernelSource:
    """y[i] = x[i] * factor, in parallel."""
    symbol = f"scale_{factor}"
    text = f"""\
static void {symbol}_range(const void *data, i64 first, i64 end) {{
  const struct scales *s = data;
  for (i64 i = first; i < end; i++) s->y[i] = scaled(s->x[i], {factor}.0f);
}}
void {symbol}(const float* restrict x, float* restrict y, i64 n) {{
  const struct scales s = {{x, y}};
  {PARALLEL}({symbol}_range, &s, n);
}}"""
    return KernelSource(symbol, text, prelude)


def call_scale(address: int, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scale kernel's output for x, from `address`; the output is poisoned before the call."""
    y = np.full_like(x, np.nan)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)(address)
    function(x.ctypes.data, y.ctypes.data, x.size)
    return y


def check_scales(addresses: Mapping[str, int], *factors: int) -> None:
    """Each scale kernel is right on fresh random input of an odd size."""
    x = np.random.default_rng().standard_normal(1003).astype(np.float32)
    for factor in factors:
        expected = x.astype(np.float64) * factor
        np.testing.assert_allclose(call_scale(addresses[f"scale_{factor}"], x), expected, rtol=2**-23)
