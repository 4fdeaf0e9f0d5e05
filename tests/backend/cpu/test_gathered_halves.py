"""Gathers of f16 with the same indices in both halves: gcc 12 builds such a vector of _Float16 from one half, with an
instruction of AVX-512 that its assembler does not know."""

from __future__ import annotations

import subprocess
from pathlib import Path

from taskmap.backend.cpu.prelude import prelude_for
from taskmap.backend.cpu.toolchain import find_toolchain

AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
UPPER = tuple(f"-ffixed-xmm{k}" for k in range(16))
"""The instruction is needed only where the registers that AVX has are in use."""
BODY = """\
void gathered(const f16 *x, f32 *y, i64 n) {
  i64x16 at = tm_add_i64x16(tm_splat_i64x16(n), (i64x16){0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  tm_store_f32x16(y, tm_cast_f16x16_to_f32x16(tm_gather_f16_i64x16(x, at)));
}
"""


def test_equal_halves_assemble(tmp_path: Path) -> None:
    command = find_toolchain().command
    (tmp_path / "a.c").write_text(prelude_for(BODY, 64) + BODY)
    flags = AVX512 if "clang" in command[0] else (*AVX512, *UPPER)
    files = (str(tmp_path / "a.c"), "-o", str(tmp_path / "a.o"))
    done = subprocess.run([*command, "-O3", "-w", *flags, "-c", *files], capture_output=True, text=True)
    assert not done.returncode, done.stderr
