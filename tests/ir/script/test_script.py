"""Script: accepted programs, their semantics, and their printed form."""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.ir import repeat, spatial
from taskmap.ir.construct import cast
from taskmap.ir.interp.run import interpret
from taskmap.ir.nodes import Barrier, Buffer, For, If, Kernel, Let, LoopKind, Scope, Store
from taskmap.ir.printer import print_body, print_kernel
from taskmap.ir.script.read import (
    Script,
    barrier,
    block,
    build,
    builder,
    ceil_div,
    dim,
    exp,
    kernel,
    local,
    log1p,
    matmul,
    maximum,
    move,
    parallel,
    region,
    register,
    script,
    select,
    shared,
    sqrt,
    thread,
    unroll,
    vector,
)
from taskmap.ir.source import SourceLocation
from taskmap.ir.types import boolean, f16, f32, i32, i64
from taskmap.ir.verify.rules import unproved
from taskmap.ir.visit import walk_stmts

n, m, k = dim("n"), dim("m"), dim("k")
rng = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def run(kernel: Kernel, *inputs: np.ndarray, **sizes: int) -> np.ndarray:
    """The first output of a kernel that takes its inputs before its outputs."""
    dims = {var: sizes[var.name] for var in kernel.dims}
    arrays = dict(zip(kernel.buffers, inputs, strict=False))
    return interpret(kernel, arrays, dims)[kernel.outputs[0]]


def test_a_kernel_is_read_from_a_function() -> None:
    @kernel(note="by hand")
    def scale(x: f32[n, 4], y: f32[n, 4]):
        """Doc strings are allowed."""
        for i in parallel(n):
            for j in range(4):
                y[i, j] = x[i, j] * 2 + i

    assert isinstance(scale, Kernel)
    assert scale.dims == (n,)
    assert [b.name for b in scale.outputs] == ["y"]
    assert scale.source.text.strip().startswith("def scale")
    assert print_kernel(scale) == (
        "kernel scale(x: f32[n, 4], y: out f32[n, 4], n: i64):  # by hand\n"
        "    for i in parallel(n):\n"
        "        for j in range(4):\n"
        "            y[i, j] = x[i, j] * 2.0 + f32(i)\n"
    )
    x = floats(5, 4)
    np.testing.assert_allclose(run(scale, x, n=5), x * 2 + np.arange(5)[:, None], rtol=1e-6)


def test_statements_know_their_line() -> None:
    @kernel
    def fill(y: f32[8]):
        for i in vector(8):
            y[i] = 1.0

    (loop,) = fill.body
    assert isinstance(loop, For)
    assert isinstance(loop.source, SourceLocation)
    assert loop.source.text.strip() == "for i in vector(8):"
    assert loop.body[0].source.text.strip() == "y[i] = 1.0"
    assert loop.body[0].source.line == loop.source.line + 1
    assert loop.source.file == __file__


def test_every_kind_of_loop() -> None:
    @kernel
    def loops(y: f32[16]):
        for a in range(2):
            for b in unroll(2):
                for c in range(2, unroll=2):
                    for d in vector(2):
                        y[a * 8 + b * 4 + c * 2 + d] = 1.0

    kinds = [(s.kind, s.unroll) for s in walk_stmts(loops.body) if isinstance(s, For)]
    assert kinds == [(LoopKind.SERIAL, 0), (LoopKind.UNROLLED, 0), (LoopKind.SERIAL, 2), (LoopKind.VECTOR, 0)]


@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(-2, 12), st.sampled_from([1, 2, 3, -1, -2, -4]), st.booleans())
def test_a_loop_counts_as_range_does(start: int, stop: int, step: int, symbolic: bool) -> None:
    end = n if symbolic else stop

    @kernel
    def count(y: i64[64], s: i64[n]):
        at = register(i64[1], init=0)
        for i in range(64):
            y[i] = 0
        for i in range(start, end, step):
            y[at[0]] = i + 100
            at[0] += 1
        s[0] = 0

    y = np.zeros(64, np.int64)
    sized = {n: stop if symbolic else 1}
    out = count.outputs[0]
    arrays = {count.buffers[1]: np.zeros(sized[n], np.int64)} if sized[n] > 0 else None
    if arrays is None:
        return
    got = interpret(count, arrays, sized)[out]
    expected = list(range(start, stop, step))
    y[: len(expected)] = np.array(expected, np.int64) + 100
    np.testing.assert_array_equal(got, y)


def test_python_around_the_kernel_is_evaluated_while_building() -> None:
    def make(width: int, bias: bool, table: tuple[float, ...]) -> Kernel:
        names = {"scale": 2.0}

        @kernel
        def apply(x: f32[8], y: f32[8]):
            assert 8 % width == 0, f"{width} does not divide 8"
            for i in range(8 // width):
                for c, factor in enumerate(table):
                    base = i * width + c
                    if bias and c > 0:
                        y[base] = x[base] * factor + names["scale"]
                    else:
                        y[base] = x[base] * factor

        return apply

    both = make(2, True, (1.0, 3.0))
    assert print_body(both.body) == (
        "for i in range(4):\n"
        "    base = i * 2\n"
        "    y[base] = x[base] * 1.0\n"
        "    base_1 = i * 2 + 1\n"
        "    y[base_1] = x[base_1] * 3.0 + 2.0"
    )
    x = floats(8)
    expected = x * np.tile(np.float32([1, 3]), 4) + np.tile(np.float32([0, 2]), 4)
    np.testing.assert_allclose(run(both, x), expected, rtol=1e-6)
    assert not any(isinstance(s, If) for s in walk_stmts(make(1, False, (1.0,)).body))


def test_conditions_become_branches_and_selects() -> None:
    @kernel
    def clip(x: f32[8], y: f32[8]):
        for i in range(8):
            t = x[i]
            if t > 1.0:
                y[i] = 1.0
            elif not (t >= -1.0) or t != t:
                y[i] = -1.0
            else:
                y[i] = t if -0.5 < t < 0.5 else t * 2.0

    x = np.array([-3, -1, -0.5, -0.2, 0, 0.4, 0.7, 3], np.float32)
    expected = np.where(x > 1, 1, np.where(x < -1, -1, np.where(abs(x) < 0.5, x, x * 2)))
    np.testing.assert_allclose(run(clip, x), expected)


def test_guarded_loads_stay_in_bounds() -> None:
    @kernel
    def shift(x: f32[n], y: f32[n]):
        for i in range(n):
            y[i] = x[i + 1] if i + 1 < n and x[i + 1] > 0.0 else 0.0

    x = floats(6)
    after = np.append(x[1:], 0)
    np.testing.assert_array_equal(run(shift, x, n=6), np.maximum(after, 0))
    assert not unproved(shift)


def test_reads_out_of_range() -> None:
    @kernel
    def window(x: f32[n], y: f32[n]):
        for i in range(n):
            y[i] = x.at(i - 1) + x.at(i + 1, otherwise=100.0) * 2.0

    x = floats(5)
    padded = np.concatenate([[0], x, [100]]).astype(np.float32)
    np.testing.assert_allclose(run(window, x, n=5), padded[:-2] + padded[2:] * 2, rtol=1e-6)
    text = print_kernel(window)
    assert "x[max(i - 1, 0)]" in text
    assert "min(i + 1, n - 1)" in text


def test_a_read_that_is_proved_needs_no_predicate() -> None:
    @kernel
    def copy(x: f32[n], y: f32[n]):
        for i in range(n):
            y[i] = x.at(i)

    assert "select" not in print_kernel(copy)


def test_assignment() -> None:
    @kernel
    def assign(x: f32[8], y: f32[8], z: i32[8]):
        a, b = x[0], x[1]
        (c, d), e = (a + b, a - b), 3
        pair = (c, d)
        h: f16 = a
        _ = 1
        _ = 2
        y[0], y[1] = pair[1], pair[0]
        y[2] = e
        y[3] = h
        y[4] = 1
        y[4] += 2
        y[4] *= a
        y[5] = -a
        y[6] = +a
        y[7] = y[6]
        for i in range(8):
            z[i] = 7
        z[2] //= 2
        z[3] %= 4
        z[4] <<= 2
        z[5] = ~z[0] & 12 | 1 ^ 3
        z[6] = i32(x[7])
        z[7] -= True

    assert sum(isinstance(s, Let) for s in assign.body) == 5
    x = floats(8) * 3
    outputs = interpret(assign, {assign.buffers[0]: x})
    y, z = (outputs[b] for b in assign.outputs)
    a, b = x[0], x[1]
    np.testing.assert_allclose(y, [a - b, a + b, 3, np.float16(a), 3 * a, -a, a, a], rtol=1e-6)
    np.testing.assert_array_equal(z, [7, 7, 3, 3, 28, ~7 & 12 | 1 ^ 3, int(x[7]), 6])


def test_functions() -> None:
    @kernel
    def functions(x: f32[8], y: f32[8]):
        for i in range(8):
            t = abs(x[i])
            y[i] = max(exp(-t), math.sqrt(t), min(t, 0.5)) + sqrt(t) ** 2 + t**0.5 + float(int(t)) + log1p(t)

    x = floats(8) * 2
    t = np.abs(x).astype(np.float64)
    expected = np.max([np.exp(-t), np.sqrt(t), np.minimum(t, 0.5)], axis=0) + t + t**0.5 + np.trunc(t) + np.log1p(t)
    np.testing.assert_allclose(run(functions, x), expected, rtol=1e-5)


def test_comprehensions_and_sums_over_known_values() -> None:
    weights = [0.25, 0.5, 0.25]

    @kernel
    def smooth(x: f32[10], y: f32[8]):
        rows = [register(f32[1], init=w) for w in weights if w > 0.3]
        for i in range(8):
            y[i] = sum(x[i + d] * w for d, w in enumerate(weights)) + len(rows) * rows[0][0]

    x = floats(10)
    np.testing.assert_allclose(run(smooth, x), np.convolve(x, weights, "valid") + 0.5, rtol=1e-5)


@script
def softplus(x, beta=1.0):
    t = x * beta
    return x if t > 20.0 else log1p(exp(t)) / beta


@script
def store_row(out, row, element):
    for j in range(out.shape[1]):
        out[row, j] = element(row, j)


@script
def half_softplus(i, j):
    return softplus(i * 0.5 + j, beta=2.0)


def test_helpers_are_inlined() -> None:
    @kernel
    def activate(y: f32[2, 4]):
        for i in parallel(2):
            store_row(y, i, half_softplus)

    at = np.arange(2)[:, None] * 0.5 + np.arange(4)
    np.testing.assert_allclose(run(activate), np.log1p(np.exp(2 * at)) / 2, rtol=1e-5)


def test_build_fills_a_template() -> None:
    x, y = Buffer("x", f32, (n,)), Buffer("y", f32, (n,))

    def template(source, out, epilogue, *, width, kind):
        """A plain function, read as script."""
        for i in kind(ceil_div(n, width)):
            for lane in range(width):
                at = i * width + lane
                if at < n:
                    out[at] = epilogue(source[at], at)

    def plus_index(value, at):
        return value + cast(at, f32)

    body = build(template, x, y, plus_index, width=4, kind=parallel)
    made = Kernel("made", (x, y), (y,), (n,), body)
    a = floats(7)
    np.testing.assert_allclose(run(made, a, n=7), a + np.arange(7), rtol=1e-6)
    scripted = build(script(template), x, y, softplus_of, width=2, kind=range)
    made = Kernel("made", (x, y), (y,), (n,), scripted)
    np.testing.assert_allclose(run(made, a, n=7), np.log1p(np.exp(a.astype(np.float64))), rtol=1e-5)


@script
def softplus_of(value, at):
    return softplus(value)


def test_a_plain_function_may_write_statements() -> None:
    x = Buffer("x", f32, (4,))

    def clear(buffer):
        builder().fill(buffer, 0.0)

    def template(buffer):
        clear(buffer)

    assert print_body(build(template, x)) == "for x_0 in range(4):\n    x[x_0] = 0.0"


def test_a_helper_may_return_early_when_that_is_known() -> None:
    @script
    def scaled(x, factor):
        if factor == 1.0:
            return x
        for limit in (1.0, 2.0):
            if factor < limit:
                return x * factor
        return x * factor + 1.0

    @kernel
    def three(x: f32[3], y: f32[3]):
        y[0], y[1], y[2] = scaled(x[0], 1.0), scaled(x[1], 0.5), scaled(x[2], 3.0)

    x = floats(3)
    np.testing.assert_allclose(run(three, x), [x[0], x[1] * 0.5, x[2] * 3 + 1], rtol=1e-6)


def test_types_of_parameters() -> None:
    columns = 4

    @kernel
    def typed(a: f32[n, columns], b: f16[()], c: f32[columns, n].strided(1, 4), d: boolean[2 * n], count: i64):
        for i in range(count):
            c[1, i] = a[i, 0] + b[()]
            d[2 * i] = a[i, 0] > 0.0

    assert [print_shape(b) for b in typed.buffers] == ["f32[n, 4]", "f16[]", "f32[4, n]", "bool[2 * n]"]
    assert typed.buffers[2].strides == (1, 4)
    assert [v.name for v in typed.dims] == ["n", "count"]
    assert [b.name for b in typed.outputs] == ["c", "d"]


def print_shape(b: Buffer) -> str:
    return print_kernel(Kernel("k", (b,), (), (), ())).split(": ", 1)[1].split(")")[0].split(" strides")[0]


def test_buffers_and_scopes() -> None:
    @kernel(grid=(2,), threads=4)
    def scopes(x: f32[8], y: f32[8]):
        mine = register(f32[2], init=1.0)
        slow = local(f32[2], init=2.0)
        ours = shared(f32[4])
        at = block.x * 4 + thread
        ours[thread] = x[at] + mine[0] + slow[1]
        barrier()
        y[at] = ours[3 - thread]

    scopes_of = {b.name: b.scope for s in scopes.body if (b := getattr(s, "buffer", None)) and b not in scopes.buffers}
    assert scopes_of == {"mine": Scope.REGISTER, "slow": Scope.LOCAL, "ours": Scope.SHARED}
    x = floats(8)
    np.testing.assert_allclose(run(scopes, x), (x + 3).reshape(2, 4)[:, ::-1].ravel(), rtol=1e-6)


def test_specs() -> None:
    @kernel
    def specs(a: f32[4, 6], b: f32[6, 4], c: f32[4, 4]):
        tile = local(f32[4, 4], init=0.0)
        matmul(tile, a, b)
        move(c, tile)
        move(region(c, (0, 0), (1, 4)), region(tile, (3, 0), (1, 4)))

    a, b = floats(4, 6), floats(6, 4)
    expected = a.astype(np.float64) @ b
    expected[0] = expected[3]
    np.testing.assert_allclose(run(specs, a, b), expected, rtol=1e-4, atol=1e-5)


def double_buffered(rows: int, cols: int, depth: int, side: int) -> Kernel:
    """The matmul of the design's examples: tiles of ``rows`` × ``cols``, ``depth`` deep, by side × side threads."""
    threads = side * side
    load_a = repeat(rows * depth // threads, 1) * spatial(threads // depth, depth)
    load_b = repeat(cols * depth // threads, 1) * spatial(threads // cols, cols)

    @kernel(grid=(ceil_div(m, rows), ceil_div(n, cols)), threads=threads)
    def gemm(a: f32[m, k], b: f32[k, n], c: f32[m, n]):
        smem_a, smem_b = shared(f32[2, rows, depth]), shared(f32[2, depth, cols])
        acc = register(f32[rows, cols], owner=spatial(side, side) * repeat(rows // side, cols // side), init=0.0)
        next_a = register(f32[rows, depth], owner=load_a)
        next_b = register(f32[depth, cols], owner=load_b)
        row, col = block.x * rows, block.y * cols

        for i, kk in load_a.on(thread):
            smem_a[0, i, kk] = a[row + i, kk]
        for kk, j in load_b.on(thread):
            smem_b[0, kk, j] = b[kk, col + j]
        barrier()
        for step in range(1, ceil_div(k, depth) + 1):
            now, following = (step - 1) % 2, step % 2
            for i, kk in load_a.on(thread):
                next_a[i, kk] = a[row + i, step * depth + kk]
            for kk, j in load_b.on(thread):
                next_b[kk, j] = b[step * depth + kk, col + j]
            for kk in range(depth):
                for i, j in acc.owner.on(thread):
                    acc[i, j] += smem_a[now, i, kk] * smem_b[now, kk, j]
            for i, kk in load_a.on(thread):
                smem_a[following, i, kk] = next_a[i, kk]
            for kk, j in load_b.on(thread):
                smem_b[following, kk, j] = next_b[kk, j]
            barrier()
        for i, j in acc.owner.on(thread):
            c[row + i, col + j] = acc[i, j]

    return gemm


@pytest.mark.parametrize("sizes", [(8, 8, 4), (9, 5, 7), (1, 12, 10), (3, 3, 1)], ids=str)
def test_a_double_buffered_matmul_for_the_gpu(sizes: tuple[int, int, int]) -> None:
    gemm = double_buffered(rows=8, cols=4, depth=4, side=4)
    rows, cols, depth = sizes
    a, b = floats(rows, depth), floats(depth, cols)
    got = run(gemm, a, b, m=rows, n=cols, k=depth)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_without_a_barrier_the_matmul_is_a_race() -> None:
    gemm = double_buffered(rows=8, cols=4, depth=4, side=4)
    a, b = floats(8, 8), floats(8, 4)
    wrong = replace(gemm, body=tuple(s for s in gemm.body if not isinstance(s, Barrier)))
    with pytest.raises(Exception, match=r"race on|before anything was written"):
        run(wrong, a, b, m=8, n=4, k=8)


def test_edges_are_predicated_only_where_they_must_be() -> None:
    def make(rows, predicated):
        @kernel(grid=(2,), threads=4, predicated=predicated)
        def edge(x: f32[rows], y: f32[rows]):
            at = block.x * 4 + thread
            y[at] = x[at]

        return edge

    assert not any(isinstance(s, If) for s in walk_stmts(make(8, True).body))
    tail = make(6, True)
    x = floats(6)
    np.testing.assert_array_equal(run(tail, x), x)
    assert sum(isinstance(s, If) for s in walk_stmts(tail.body)) == 1
    assert not any(isinstance(s, If) for s in walk_stmts(make(n, False).body))
    np.testing.assert_array_equal(run(make(n, None), x, n=6), x)


def test_names_end_with_their_block_and_may_be_used_again() -> None:
    @kernel
    def again(x: f32[4], y: f32[8]):
        for i in range(4):
            t = x[i] + 1.0
            y[i] = t
        for i in range(4):
            t = x[i] + 2.0
            y[i + 4] = t

    x = floats(4)
    np.testing.assert_allclose(run(again, x), np.concatenate([x + 1, x + 2]), rtol=1e-6)


class Holder:
    """A kernel in a class body, indented and in the class's scope."""

    size = 4

    @kernel
    def inside(x: f32[size], y: f32[size]):  # noqa: N805
        for i in range(x.shape[0]):
            y[i] = x[i] * 2.0  # é: columns are counted in characters


def test_a_kernel_in_a_class() -> None:
    x = floats(4)
    np.testing.assert_allclose(run(Holder.inside, x), x * 2)


def test_words_from_elsewhere_are_the_same_words() -> None:
    @kernel
    def words(x: f32[4], y: f32[4]):
        for i in range(4):
            y[i] = select(x[i] > 0.0, maximum(x[i], 1.0), 0.0)

    assert isinstance(softplus, Script)
    assert all(not isinstance(s, Store) or s.source for s in walk_stmts(words.body))
