"""Halves of a register are joined among registers: stored apart and loaded together, they wait for both stores."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from taskmap.backend.cpu.math.memory import join
from taskmap.backend.cpu.math.types import Vector
from taskmap.backend.cpu.prelude import prelude_for
from taskmap.backend.cpu.toolchain import find_toolchain

CASTS = [("i64", "i32"), ("i64", "f32"), ("f64", "f32"), ("f64", "i32")]


@pytest.mark.parametrize(("source", "target"), CASTS)
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_casts_store_only_their_results(source: str, target: str, isa: str, tmp_path: Path) -> None:
    toolchain = find_toolchain()
    lanes = 16 if isa == "avx512" else 8
    cast = f"tm_cast_{source}x{lanes}_to_{target}x{lanes}(tm_load_{source}x{lanes}(x))"
    body = f"void converted(const {source} *x, {target} *y) {{ tm_store_{target}x{lanes}(y, {cast}); }}\n"
    (tmp_path / "a.c").write_text(prelude_for(body, 64 if isa == "avx512" else 32) + body)
    machine = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl") if isa == "avx512" else ("-mavx2",)
    command = [*toolchain.command, "-O3", "-w", "-S", *machine, str(tmp_path / "a.c"), "-o", str(tmp_path / "a.s")]
    subprocess.run(command, check=True, capture_output=True)
    text = (tmp_path / "a.s").read_text().split("converted:")[1].split("ret")[0]
    assert not re.search(r"%r[sb]p", text), text


def test_which_halves_are_shuffled() -> None:
    def shuffled(dtype: str, lanes: int, vector_bytes: int) -> bool:
        return "shufflevector" in join(Vector(dtype, lanes), vector_bytes)

    assert shuffled("f32", 16, 64)
    assert shuffled("i8", 16, 64)
    assert not shuffled("f32", 16, 32)  # parts of two registers
    assert not shuffled("f16", 16, 64)  # which gcc 12 builds lane by lane
    assert not shuffled("i8", 8, 64)
