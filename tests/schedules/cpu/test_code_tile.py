"""Products with codes of four bits: their values, and the instructions of the hot loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taskmap.backend.cpu.host import detect_host
from taskmap.ir.analysis.codes import TERMS, affine, code_of, find_code
from taskmap.ir.construct import call, cast, index, unary
from taskmap.ir.nodes import Buffer, Expr, Reduce, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import bf16, f32, i16
from taskmap.schedules import schedule
from tests.schedules import bf16_products
from tests.schedules.bf16_products import bf16_array
from tests.schedules.disassembly import hot_loop, spills

Array = NDArray[Any]
GROUP = 32
TARGET = cpu_target("avx512", 2, features=["avx512_bf16"])
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in detect_host().features, reason="this CPU has no avx512_bf16")


def product(m: int, n: int, groups: int, width: int, form: str) -> Task:
    """out = a @ w, with w[k, j] = code · scale, or less a zero point before that, or the code alone ("plain")."""
    panels, terms = -(-n // width), groups * GROUP
    a, words = Buffer("a", bf16, (m, terms)), Buffer("words", i16, (panels, terms // TERMS, width, 2))
    scale, zero = (Buffer(name, bf16, (panels, groups, width)) for name in ("scale", "zero"))
    out, i, j, place, group = Buffer("out", bf16, (m, n)), Var("i"), Var("j"), Var("p"), Var("g")
    k = group * GROUP + place
    at = (j // width, group, j % width)
    weight: Expr = cast(code_of(words, (j // width, k, j % width)), f32)
    s, z = cast(scale[at], f32), cast(zero[at], f32)
    if form == "zero":
        weight = call("fma", weight, s, unary("neg", z * s))
    elif form == "scale":
        weight = weight * s
    axes = ((place, index(GROUP)), (group, index(groups)))
    body = cast(Reduce("sum", axes, cast(a[i, k], f32) * weight, f32), bf16)
    inputs = {"zero": (a, words, scale, zero), "scale": (a, words, scale), "plain": (a, words)}[form]
    return Task("matmul", inputs, (Stage(out, (i, j), body, "matmul"),), (out,))


def words_of(codes: Array, width: int) -> Array:
    """Codes [k, n] in words: [panels, k / 8, width, 2]."""
    k, n = codes.shape
    whole = np.zeros((k, -(-n // width) * width), np.int64)
    whole[:, :n] = codes
    pairs = whole.reshape(k // TERMS, TERMS // 2, 2, -1, width)
    found = sum(pairs[:, p] << 4 * p for p in range(TERMS // 2))
    assert isinstance(found, np.ndarray)
    return np.ascontiguousarray(found.transpose(2, 0, 3, 1).astype(np.uint16).view(np.int16))


@needs_bf16
@pytest.mark.parametrize("form", ["zero", "scale", "plain"])
@pytest.mark.parametrize(
    ("m", "n", "groups", "width"), [(1, 96, 4, 96), (1, 100, 1, 64), (3, 64, 5, 64), (8, 33, 2, 48)]
)
def test_products(m: int, n: int, groups: int, width: int, form: str) -> None:
    rng = np.random.default_rng()
    kernel = schedule(product(m, n, groups, width, form), TARGET)
    assert "by=vdpbf16ps_16" in kernel.note
    a, codes = bf16_array((m, groups * GROUP), rng), rng.integers(0, 16, (groups * GROUP, n))
    arrays, weights = [a, words_of(codes, width)], codes.astype(np.float64)
    scale, zero = (bf16_array((-(-n // width), groups, width), rng) for _ in range(2))
    by_term = [f.transpose(1, 0, 2).reshape(groups, -1)[:, :n].repeat(GROUP, 0) for f in (scale, zero)]
    if form == "zero":
        weights = (weights - by_term[1]) * by_term[0]
        arrays += [scale, zero]
    elif form == "scale":
        weights = weights * by_term[0]
        arrays.append(scale)
    got = bf16_products.run(kernel, TARGET, ("avx512_bf16",), arrays, {})
    want = a.astype(np.float64) @ weights
    size = np.abs(a) @ (np.abs(by_term[0]) * (codes + np.abs(by_term[1])) if form != "plain" else codes)
    assert (np.abs(got - want) <= 2.0**-8 * np.abs(want) + 2.0**-21 * size).all()


def test_the_hot_loop_looks_codes_up_and_adds_pairs(tmp_path: Path) -> None:
    """Of 8 terms and 7 vectors: one look-up and one product for each pair, three shifts, no mask and no conversion."""
    loop = hot_loop(schedule(product(1, 112, 28, 112, "zero"), TARGET), TARGET, "vdpbf16ps", tmp_path)
    count = {
        name: sum(f"\t{name}" in line for line in loop) for name in ("vdpbf16ps", "vpermw", "vpsr", "vpand", "vcvt")
    }
    assert count == {"vdpbf16ps": 4 * (7 + 1), "vpermw": 4 * 7, "vpsr": 3 * 7, "vpand": 0, "vcvt": 0}
    assert not spills(loop)


def test_words_are_loaded_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    """In another order weights stream at half the speed; C compilers reorder loads that are far from their use."""
    loop = hot_loop(schedule(product(1, 112, 28, 112, "zero"), TARGET), TARGET, "vdpbf16ps", tmp_path)
    moved: dict[str, int] = {}
    places: list[int] = []
    for line in loop:
        if step := re.search(r"\tadd\s+\$(-?0x\w+),(%r\w+)", line):
            moved[step[2]] = moved.get(step[2], 0) + int(step[1], 16)
        if found := re.search(r"\tvmovdq\w+\s+(-?0x\w+)?\((%r\w+)\),%zmm", line):
            places.append(int(found[1] or "0", 16) + moved.get(found[2], 0))
    assert places == [64 * vector for vector in range(7)]


def test_other_weights_have_no_code() -> None:
    bodies: list[Any] = [s.body for s in product(1, 64, 2, 64, "zero").stages]
    (total,) = (body.a for body in bodies if hasattr(body, "a"))
    assert isinstance(total, Reduce)
    weight = total.body.b  # type: ignore[attr-defined]  # a product
    code = find_code(weight)
    assert code is not None
    assert affine(weight, code) is not None
    assert affine(weight * weight, code) is None
    assert affine(call("exp", weight), code) is None
    assert find_code(cast(code.a.a, f32)) is None  # type: ignore[attr-defined]  # not rounded to bf16
