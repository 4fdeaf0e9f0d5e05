"""The strategies of examples/strategies: in the simulator, or on this CPU, at sizes that are and are not multiples."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import taskmap
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.codegen import generate
from taskmap.backend.cuda.compile import SUFFIX, compile_cuda
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.decompose import BLOCK, REGISTER, SHARED, THREAD, MatMul, Strategy, dim
from taskmap.ir.errors import ScheduleError
from taskmap.ir.lower.gpu import on_multiprocessors
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import cuda_target, gpu_named
from taskmap.ir.types import f32
from taskmap.kernels.instructions import check_target

FOLDER = Path(__file__).parents[2] / "examples" / "strategies"
ON_CPU = ["cpu_outer_product"]
OTHERS = ["__init__", "epilogues", "softmax_rows", "cpu_convolution", "transpose"]
ON_GPU = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in (*OTHERS, *ON_CPU))
EDITS = {
    "async_ring": ("tile(64, 64)", "tile(32, 128)"),
    "cpu_outer_product": ("tile(6, 32)", "tile(4, 48)"),
    "double_buffering": ("tile(4, 4)", "tile(8, 2)"),
    "epilogues": ("tile(64, 64)", "tile(32, 64)"),
    "hopper": ("tile(128, 128)", "tile(192, 128)"),
    "maxwell": ("tile(64, 32)", "tile(32, 64)"),
    "persistent_hopper": ("tile(256, 128)", "tile(512, 128)"),
    "mma_large": ("tile(128, 128)", "tile(64, 128)"),
    "mma_small": ("tile(32, 32)", "tile(64, 64)"),
    "quad_pairs": ("tile(16, 32)", "tile(32, 16)"),
    "simple_wmma": (".tile(64, 64).to(WARP)", ".tile(32, 64).to(WARP)"),
    "wmma_sample": ("tile(2, 128)", "tile(4, 64)"),
}
"""Other tile sizes for each strategy: two numbers of its text."""


NOT_ON_T4 = {
    "async_ring": r"which needs cuda:sm_80",
    "hopper": r"it uses \w+, which needs cuda:sm_80",
    "mma_large": r"it uses mma_m16n8k16_f16_f32, which needs cuda:sm_80",
    "mma_small": r"it uses mma_m16n8k16_f16_f32, which needs cuda:sm_80",
    "persistent_hopper": r"clusters of 2, which need cuda:sm_90",
    "wmma_sample": r"it needs 139200 bytes of shared memory, and a block has 65536",
}


def strategy(name: str) -> Callable[..., Strategy]:
    """The function that a file defines under its own name."""
    found: Callable[..., Strategy] = getattr(import_module(f"examples.strategies.{name}"), name)
    return found


def operands(tree: Strategy, *shape: int) -> list[NDArray[Any]]:
    """Random a and b of shape (batch..., m, n, k), and a poisoned c."""
    *batch, m, n, k = shape
    rng = np.random.default_rng(sum(shape))
    a, b, c = (np.dtype(o.dtype.name.replace("f", "float")) for o in tree.root.operands)
    return [
        rng.standard_normal((*batch, m, k)).astype(a),
        rng.standard_normal((*batch, k, n)).astype(b),
        np.full((*batch, m, n), np.nan, c),
    ]


def close(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> None:
    """c = a @ b, as exactly as sums in the type of c allow."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, exact, rtol=0, atol=(2e-6 if c.dtype == np.float32 else 4e-3) * a.shape[-1])


def simulate(kernel: Kernel, arrays: list[NDArray[Any]], **options: Any) -> taskmap.Simulation:
    found = taskmap.simulate(on_multiprocessors(kernel, 4), *arrays, seconds=600.0, **options)
    found.check()
    assert found.deterministic
    close(*arrays)
    return found


@pytest.mark.parametrize("name", EDITS)
def test_a_strategy_is_short(name: str) -> None:
    assert len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 50


@pytest.mark.parametrize("name", ON_GPU)
def test_whole_tiles_in_six_orders_of_threads(name: str) -> None:
    tree = strategy(name)(128, 128, 128)
    assert simulate(tree.kernel(), operands(tree, 128, 128, 128)).runs == 6


@pytest.mark.parametrize("name", ON_GPU)
def test_one_kernel_for_all_sizes(name: str) -> None:
    tree = strategy(name)(dim("m"), dim("n"), dim("k"))
    for shape in ((129, 257, 65), (7, 5, 3), (64, 1, 130)):
        simulate(tree.kernel(), operands(tree, *shape), seeds=(0, 1))


@pytest.mark.parametrize("name", ON_GPU)
def test_batches(name: str) -> None:
    tree = strategy(name)(dim("m"), dim("n"), dim("k"), (dim("z"),))
    simulate(tree.kernel(), operands(tree, 3, 70, 130, 40), seeds=(0,))


def test_copies_read_memory_in_order() -> None:
    """The order of b makes no difference, and odd addresses at most a factor of two: c is stored one by one."""
    rng = np.random.default_rng(0)

    def sectors(n: int, b: NDArray[Any], strides: tuple[int, int]) -> float:
        block = MatMul(64, n, 64, b=f32[64, n].strided(*strides)).tile(32, 32).to(BLOCK).accumulate_in(REGISTER)
        tree = block.split(8).move("a", SHARED).move("b", SHARED).tile(4, 4).to(THREAD).split(1).tile(1, 1).done()
        a, c = rng.standard_normal((64, 64)).astype(np.float32), np.full((64, n), np.nan, np.float32)
        found = taskmap.simulate(tree.kernel(), a, b, c, seeds=(0,), policies=("late",), seconds=600.0)
        found.check()
        close(a, b, c)
        return found.counters["global sectors"]

    b = rng.standard_normal((64, 64)).astype(np.float32)
    plain = sectors(64, b, (64, 1))
    assert sectors(64, np.ascontiguousarray(b.T).T, (1, 64)) == plain
    assert sectors(63, np.ascontiguousarray(b[:, :63]), (63, 1)) < 2 * plain


@pytest.mark.parametrize("name", ON_GPU)
def test_the_assembler_spills_no_register(name: str) -> None:
    """A spill, or wgmma that waits for each product, is an error of the build."""
    target = cuda_target("sm_90a" if "hopper" in name else "sm_80")
    kernel = lower(strategy(name)(1024, 1024, 1024).kernel(), target=target)
    store = KernelStore(suffix=SUFFIX)
    found = compile_cuda([generate(kernel, target)], find_cuda_toolchain(target.isa), store, Counters(), jobs=1)
    assert all(0 < made.resources.registers <= 255 for made in found.values())


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("isa", ["host", "generic"])
def test_on_a_cpu(name: str, isa: str) -> None:
    options = {} if isa == "host" else {"isa": isa}
    tree = strategy(name)(dim("m"), dim("n"), dim("k"))
    product = taskmap.build(tree.kernel(), options=options)
    for shape in ((128, 128, 128), (129, 257, 65), (6, 32, 1), (5, 31, 7)):
        arrays = operands(tree, *shape)
        product(*arrays)
        close(*arrays)
    tree = strategy(name)(40, 70, 9, (2, dim("z")))
    arrays = operands(tree, 2, 3, 40, 70, 9)
    taskmap.build(tree.kernel(), options=options)(*arrays)
    close(*arrays)


@pytest.mark.parametrize("name", EDITS)
def test_other_tile_sizes_are_two_numbers(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    before, after = EDITS[name]
    assert text.count(before) == 1
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text.replace(before, after), f"{name}.py", "exec"), names)
    tree = names[name](dim("m"), dim("n"), dim("k"))
    assert str(tree) != str(strategy(name)(dim("m"), dim("n"), dim("k")))
    arrays = operands(tree, 70, 130, 40)
    if name in ON_CPU:
        taskmap.build(tree.kernel())(*arrays)
        close(*arrays)
    else:
        simulate(tree.kernel(), arrays, seeds=(0,))


def test_the_two_epilogues_of_figure_2() -> None:
    """By way of shared memory, stores take half the sectors; padding removes the bank conflicts of the exchange."""
    module = import_module("examples.strategies.epilogues")
    counted = {}
    for store in (module.straight, module.without_padding, module.by_way_of_shared_memory):
        tree = module.epilogues(128, 128, 64, store)
        counted[store.__name__] = simulate(tree.kernel(), operands(tree, 128, 128, 64), seeds=(0,)).counters
    straight, plain, padded = counted.values()
    stores = 128 * 128 * 2 // 32
    assert straight["global ideal"] == padded["global ideal"] == padded["global sectors"]
    assert straight["global sectors"] - padded["global sectors"] >= stores  # beyond the fewest, which padded takes
    assert plain["shared wavefronts"] > 1.5 * padded["shared wavefronts"]
    assert padded["shared wavefronts"] <= 1.1 * padded["shared ideal"]


def test_the_swizzle_of_maxwell() -> None:
    """Swizzled rows of b take no more wavefronts than plain ones: the fewest, where each write of a warp took two."""
    module = import_module("examples.strategies.maxwell")
    plain, swizzled = (
        simulate(tree.kernel(), operands(tree, 128, 128, 16), seeds=(0,), policies=("late",)).counters
        for tree in (module.maxwell(128, 128, 16, layout=layout) for layout in (module.plain, module.swizzled))
    )
    assert swizzled["shared wavefronts"] == swizzled["shared ideal"] == plain["shared ideal"]
    assert plain["shared wavefronts"] - swizzled["shared wavefronts"] == 16 * 128 // 32  # one for each write of a warp


@pytest.mark.parametrize(("name", "gpu"), [("async_ring", "T4"), ("mma_small", "T4")])
def test_a_target_without_the_instruction_is_refused(name: str, gpu: str) -> None:
    tree = strategy(name)(64, 64, 64)
    with pytest.raises(ScheduleError, match=r"which needs cuda:sm_80") as caught:
        taskmap.simulate(tree.kernel(), *operands(tree, 64, 64, 64), gpu=gpu)
    assert ("leave out asynchronous()" in str(caught.value)) == (name == "async_ring")


@pytest.mark.parametrize("gpu", ["T4", "H200"])
@pytest.mark.parametrize("name", ON_GPU)
def test_limits_of_targets(name: str, gpu: str) -> None:
    """A strategy fits a GPU, or is refused with the instruction that it lacks, or the bytes."""
    target, kernel = gpu_named(gpu), strategy(name)(1024, 1024, 1024).kernel()
    if gpu == "T4" and name in NOT_ON_T4:
        with pytest.raises(ScheduleError, match=NOT_ON_T4[name]):
            check_target(kernel, target)
        return
    check_target(kernel, target)
    source = generate(lower(kernel, target=target), target)
    assert source.shared_bytes <= target.shared_per_block
    assert source.threads * 32 <= target.registers_per_sm


@pytest.mark.parametrize("gpu", ["T4", "H200"])
def test_small_tiles_win_on_small_products(gpu: str) -> None:
    """On 128×128×4096 one block of 128×128 leaves all other multiprocessors idle (Fireiron, figure 11)."""
    bounds = {}
    for name in ("mma_small", "mma_large"):
        tree = strategy(name)(128, 128, 4096)
        found = simulate(tree.kernel(), operands(tree, 128, 128, 4096), seeds=(0,), policies=("late",))
        bounds[name] = found.roofline(gpu).seconds
    assert bounds["mma_large"] >= 2 * bounds["mma_small"]
