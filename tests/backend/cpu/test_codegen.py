"""Generated C: the text of six kernels, and the refusals of the generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.graph.ops import activations, arithmetic, matmul, reductions, softmax, views
from taskmap.ir.algebra.mapping import repeat
from taskmap.ir.builder import Builder
from taskmap.ir.construct import call, cast, const, index, maximum, minimum, ramp, select, unary
from taskmap.ir.errors import CodegenError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Buffer, Evaluate, Kernel, LaneReduce, LoopKind, MappedFor, Move, Region, Scope, Var
from taskmap.ir.target import cpu_target
from taskmap.ir.task import Stage, Task
from taskmap.ir.types import DType, bf16, boolean, f32, i8, i32, i64, u8
from taskmap.schedules import schedule
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.running import Case, run_cases


def mixed() -> Task:
    """Types of several widths, a gather, a constant of bf16, a choice."""
    n = Var("n")
    x, at, keep = Buffer("x", bf16, (50,)), Buffer("at", i64, (n,)), Buffer("keep", boolean, (n,))
    y, z = Buffer("y", bf16, (n,)), Buffer("z", i8, (n,))
    i, k = Var("i"), Var("k")
    taken = x[call("checked_index", at[i], index(50))]
    first = Stage(y, (i,), select(keep[i], taken, const(1.5, bf16)), "where")
    small = cast(at[k], i8)
    second = Stage(z, (k,), select(cast(y[k], f32) < 0.5, unary("neg", small), small + small), "choose")
    return Task("mixed", (x, at, keep), (first, second), (y, z), (n,))


def product() -> Task:
    y = matmul.mm(tensor(7, 20), tensor(20, 24))
    return fused([activations.relu(arithmetic.add(y, tensor(24)))], y)


GOLDEN: dict[str, Callable[[], Task]] = {
    "elementwise": lambda: fused([arithmetic.add(activations.relu(tensor(3, 40)), tensor(40))]),
    "mixed": mixed,
    "softmax": lambda: fused([softmax.softmax(tensor(6, 40), 1)]),
    "sum": lambda: fused([reductions.sum_(tensor(1, 300_000))]),
    "transpose": lambda: fused([views.copy(views.permute(tensor(64, 80), (1, 0)))]),
    "matmul": product,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    target = cpu_target("avx512", 2)
    source = generate(lower(schedule(GOLDEN[name](), target), target=target), target.vector_bytes)
    golden(f"kernel_{name}.c", source.text.replace(source.symbol, f"tm_{name}"))


def test_equal_kernels_have_equal_text_and_names_stay_out() -> None:
    def text(name: str) -> str:
        x, y, i = Buffer(name, f32, (10,)), Buffer("y", f32, (10,)), Var(name)
        task = Task("k", (x,), (Stage(y, (i,), x[i] + 1.0, name),), (y,))
        return generate(lower(schedule(task, cpu_target("avx512", 2)))).text

    assert text("x") == text("x")
    for name in ('"; int main() {', "3x", "tm", "f32x16", "", "ünïcode", "*/ evil /*"):
        written = text(name)
        assert "evil" not in written or "evil_" in written
        assert "main()" not in written
        assert written.isascii()


def test_the_note_is_a_comment_and_no_request() -> None:
    b, y = Builder(), Buffer("y", f32, (1,))
    b.store(y, 0, 1.0)
    source = generate(Kernel("k", (y,), (y,), (), b.body(), note="f64x8 n0x5 tm_nothing_f32x1 */ x"))
    assert source.text.startswith("/* f64x8 n0x5 tm_nothing_f32x1 * / x */\n")
    assert not any("f64x8" in part for part in source.prelude)


def refused(make: Callable[[Builder, Buffer, Var], None]) -> str:
    """The generator's error message for a kernel on y: f32[8] with a size n."""
    b, y, n = Builder(), Buffer("y", f32, (8,)), Var("n")
    make(b, y, n)
    with pytest.raises(CodegenError) as error:
        generate(Kernel("k", (y,), (y,), (n,), b.body()))
    return str(error.value)


def unknown_register(b: Builder, y: Buffer, n: Var) -> None:
    acc = b.allocate("acc", f32, (8,), Scope.REGISTER)
    with b.loop("i", 8) as i:
        b.store(acc, i, 1.0)


def strided_register(b: Builder, y: Buffer, n: Var) -> None:
    acc = b.allocate("acc", f32, (8,), Scope.REGISTER)
    b.store(acc, (ramp(0, 2, 4),), 1.0)


def register_of_two_widths(b: Builder, y: Buffer, n: Var) -> None:
    acc = b.allocate("acc", f32, (8,), Scope.REGISTER)
    b.store(acc, (ramp(0, 1, 4),), 1.0)
    b.store(y, 0, acc[0])


def local_of_unknown_size(b: Builder, y: Buffer, n: Var) -> None:
    tile = b.allocate("tile", f32, (n,))
    b.store(y, 0, tile[0])


def vector_loop(b: Builder, y: Buffer, n: Var) -> None:
    with b.loop("i", 8, LoopKind.VECTOR) as i:
        b.store(y, i, 1.0)


def spec(b: Builder, y: Buffer, n: Var) -> None:
    b.emit(Move(Region(y, (index(0),), (4,)), Region(y, (index(4),), (4,))))


def mapped_loop(b: Builder, y: Buffer, n: Var) -> None:
    b.emit(MappedFor((Var("t"),), repeat(8), index(0), ()))


def shifted_lanes(b: Builder, y: Buffer, n: Var) -> None:
    b.emit(Evaluate(LaneReduce("xor", y[ramp(0, 1, 4)], f32)))


REFUSED: dict[str, tuple[Callable[[Builder, Buffer, Var], None], str]] = {
    "register by loop": (unknown_register, "not known when compiling"),
    "register by step": (strided_register, "not known when compiling"),
    "register of two widths": (register_of_two_widths, "with 1 and with 4 lanes|with 4 and with 1 lanes"),
    "local of unknown size": (local_of_unknown_size, "size that is not known"),
    "vector loop": (vector_loop, "vector loop"),
    "spec": (spec, "Move cannot be written in C"),
    "mapped loop": (mapped_loop, "MappedFor cannot be written in C"),
    "lanes": (shifted_lanes, "xor over the lanes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, message = REFUSED[name]
    said = refused(make)
    assert any(part in said for part in message.split("|"))


@pytest.mark.parametrize("step", [3, 8])
def test_a_division_of_known_lanes_is_written_as_its_result(step: int) -> None:
    # A compiler would divide the 16 numbers one by one, in every iteration.
    x, y, i = Buffer("x", f32, (64,)), Buffer("y", f32, (96,)), Var("i")
    task = Task("repeated", (x,), (Stage(y, (i,), x[i // step] + x[i % step], "repeat"),), (y,))
    source = generate(lower(schedule(task, cpu_target("avx512", 2)), target=cpu_target("avx512", 2))).text
    body = source[source.index("repeated") :]
    assert ("floor_div" in body) == (step == 3)  # 16 v // 3 differs from vector to vector
    value = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    places = np.arange(96)
    (found,) = run_cases([Case(task, [value])])[0]
    np.testing.assert_array_equal(found, value[places // step] + value[places % step])


@pytest.mark.parametrize(("dtype", "low", "high"), [(i8, -128, 127), (u8, 0, 255)], ids=["i8", "u8"])
def test_steps_of_quantisation_are_one_function_each(dtype: DType, low: int, high: int) -> None:
    target, x, i = cpu_target("avx512", 2), Buffer("x", f32, (640,)), Var("i")
    out, whole = Buffer("out", dtype, (640,)), cast(call("round", x[i] * 3.0), i32) + 5
    body = cast(minimum(maximum(whole, low), high), dtype)
    kernel = schedule(Task("quantize", (x,), (Stage(out, (i,), body, "quantize"),), (out,), (), 0), target)
    text = generate(lower(kernel, target=target), target.vector_bytes).text
    assert "tm_nearest_f32x" in text
    assert f"_to_{dtype}x" in text.split("tm_clamped_i32x")[1]
    assert "tm_cast_" not in text
