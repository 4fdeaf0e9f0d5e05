"""The test of micro-kernels: right ones pass, wrong ones are caught, and text is compiled if there is a compiler."""

from __future__ import annotations

import numpy as np
import pytest

import taskmap
from taskmap.backend.cuda.nvrtc import nvrtc_module
from taskmap.decompose import (
    BLOCK,
    CORE,
    GLOBAL,
    LOCAL,
    REGISTER,
    SHARED,
    THREAD,
    WARP,
    MatMul,
    MicroKernel,
    Move,
    check_micro_kernel,
    micro_kernel,
)
from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError, SimulationError, VerifyError
from taskmap.ir.types import bf16, f16, f32
from tests.ir.decompose.micro_scripts import all_rows, outer, products, rows, too_wide
from tests.ir.decompose.test_micro_kernels import (
    FROM_SHARED,
    HELD,
    LOOPS,
    SOME,
    by_threads,
    tensor_cores,
)

ON_CPU = (GLOBAL, LOCAL, REGISTER)


def has_compiler() -> bool:
    try:
        nvrtc_module()
    except CompilerNotFoundError:
        return False
    return True


RIGHT: dict[str, tuple[MicroKernel, str]] = {
    "script of a core": (micro_kernel(products, MatMul(3, 8, 4), CORE, ON_CPU), "on this CPU"),
    "C": (micro_kernel(LOOPS, MatMul(4, 8, 4), CORE, ON_CPU, language="c", name="c"), "on this CPU"),
    "script of a thread": (micro_kernel(outer, MatMul(4, 4, 1), THREAD, HELD), "in the simulator"),
    "other types": (micro_kernel(outer, MatMul(4, 2, 1, a=bf16, b=bf16), THREAD, SOME), "in the simulator"),
    "copy of a block": (micro_kernel(rows, Move(f32[16, 8]), BLOCK, (GLOBAL, SHARED)), "in the simulator"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones(name: str) -> None:
    leaf, where = RIGHT[name]
    assert str(check_micro_kernel(leaf, trials=2)) == f"{leaf.name}: right in 2 trials, {where}"


def test_text_with_and_without_a_twin() -> None:
    """On a machine without a GPU; without a compiler for it, too."""
    compiles = "; its text compiles" if has_compiler() else ""
    twin = micro_kernel(FROM_SHARED, MatMul(4, 4, 1), THREAD, SOME, language="cuda", twin=outer, name="text")
    checked = check_micro_kernel(twin, trials=1)
    assert checked.executed in ("by its twin in the simulator", "on the GPU")
    checked = check_micro_kernel(tensor_cores(name="mma"), trials=1)
    if checked.executed != "on the GPU":
        assert str(checked) == f"mma: unknown here: nothing executes it{compiles}"


def test_wrong_ones_are_caught() -> None:
    half = LOOPS.replace("k < 4", "k < 2")
    with pytest.raises(VerifyError, match=r"micro-kernel half does not perform MatMul\(4,8,4\)\(GL,LM,RF\)\(Core\)"):
        check_micro_kernel(micro_kernel(half, MatMul(4, 8, 4), CORE, ON_CPU, language="c", name="half"), trials=1)
    beyond = micro_kernel(f"{LOOPS}\nc[8 * c_n] = 99;", MatMul(4, 8, 4), CORE, (GLOBAL, LOCAL, GLOBAL), language="c")
    said = []
    for seed in range(3):  # a tile may be as wide as its tensor
        with pytest.raises(VerifyError) as caught:
            check_micro_kernel(beyond, trials=1, seed=seed)
        said.append(str(caught.value))
    assert any("outside its tile of [4, 8]" in text for text in said), said
    with pytest.raises(SimulationError, match="race"):
        check_micro_kernel(micro_kernel(all_rows, Move(f32[16, 8]), BLOCK, (GLOBAL, SHARED)), trials=1)


def test_an_index_beyond_the_tile_is_refused_when_it_is_read() -> None:
    with pytest.raises((VerifyError, taskmap.TaskmapError)):
        check_micro_kernel(micro_kernel(too_wide, MatMul(4, 4, 1), THREAD, (SHARED, SHARED, GLOBAL)), trials=1)


def test_text_that_does_not_compile() -> None:
    wrong = micro_kernel("c[0] = ;", MatMul(1, 1, 1), THREAD, HELD, language="cuda")
    if not has_compiler():
        assert not check_micro_kernel(wrong, trials=1).compiled
        return
    with pytest.raises(CompilerFailedError):
        check_micro_kernel(wrong, trials=1)


def test_the_simulator_says_what_it_does_not_know() -> None:
    """A twin costs what the text costs; a spec executed in its place does not."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((8, 32)).astype(np.float32)
    for twin in (outer, None):
        leaf = micro_kernel(FROM_SHARED, MatMul(4, 4, 1), THREAD, SOME, language="cuda", twin=twin, name="text")
        c = np.full((16, 32), np.nan, np.float32)
        found = taskmap.simulate(by_threads(leaf, registers=False).kernel(), a, b, c, seeds=[0], policies=["late"])
        found.check()
        np.testing.assert_allclose(c, a.astype(np.float64) @ b, atol=1e-5)
        assert found.unknown == (() if twin else ("text",))
        assert ("unknown here: the cost of text" in str(found)) is (twin is None)


def test_a_kernel_with_text_is_built_for_the_simulator() -> None:
    leaf = micro_kernel(FROM_SHARED, MatMul(4, 4, 1), THREAD, SOME, language="cuda", twin=outer)
    made = taskmap.build(by_threads(leaf, registers=False).kernel(), target="cuda-sim")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((17, 9)).astype(np.float32), rng.standard_normal((9, 33)).astype(np.float32)
    c = np.full((17, 33), np.nan, np.float32)
    made(a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, atol=1e-5)


def test_lanes_of_a_warp_in_the_simulator() -> None:
    """Tensor cores in PTX: the lanes exchange fragments in shared memory."""
    leaf = tensor_cores()
    tree = MatMul(32, 16, 32, a=f16, b=f16).tile(32, 16).to(BLOCK).accumulate_in(REGISTER).split(16)
    tree = tree.move("a", SHARED).move("b", SHARED).tile(16, 16).to(WARP).move("a", REGISTER).move("b", REGISTER)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((32, 32), (32, 16)))
    c = np.full((32, 16), np.nan, np.float32)
    found = taskmap.simulate(tree.tile(16, 8).done(leaf).kernel(), a, b, c)
    found.check()
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b)
    assert found.unknown == ("micro_kernel",)
