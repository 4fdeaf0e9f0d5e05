"""Rounding to bf16 by one instruction: the bits of PyTorch's rounding, of every kind of number."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from taskmap.backend.cpu.host import detect_host
from taskmap.backend.cpu.prelude import prelude_for
from taskmap.backend.cpu.toolchain import find_toolchain


@pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU lacks the instruction")
@pytest.mark.parametrize("lanes", [8, 16])
def test_every_number_is_rounded_like_pytorchs(lanes: int, tmp_path: Path) -> None:
    """All upper halves, with the lower halves that decide: zero, just below, at and above one half, all ones."""
    source = (
        "void rounded(const f32 *x, bf16 *y, i64 n) {\n"
        f"  for (i64 i = 0; i < n; i += {lanes})\n"
        f"    tm_store_bf16x{lanes}(y + i, tm_cast_f32x{lanes}_to_bf16x{lanes}(tm_load_f32x{lanes}(x + i)));\n}}\n"
    )
    toolchain, library = find_toolchain(isa="avx512"), tmp_path / "rounded.so"
    flags = [*toolchain.flags, "-mavx512bf16", "-Wno-psabi", "-Werror"]
    command = [toolchain.command[0], *flags, "-x", "c", "-", "-o", str(library)]
    text = prelude_for(source, 64) + source
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=250)
    if "no such instruction" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip("the compiler is older than the instruction")
    assert done.returncode == 0, done.stderr
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (upper[None, :] + lower[:, None]).flatten()
    bits = torch.cat([bits, bits[torch.randperm(len(bits))]])  # vectors of one kind, and of mixed kinds
    x = (bits - ((bits >> 31) << 32)).to(torch.int32).view(torch.float32)
    got = torch.zeros(len(x), dtype=torch.bfloat16)
    function = ctypes.CDLL(str(library)).rounded
    function(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(got.data_ptr()), ctypes.c_int64(len(x)))
    want, is_nan = x.bfloat16(), x.isnan()
    assert torch.equal(got[~is_nan].view(torch.int16), want[~is_nan].view(torch.int16))
    assert got[is_nan].isnan().all()
