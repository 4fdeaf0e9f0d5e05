"""Strategies as schedules of fused groups: prologues, epilogues, batches, merged axes, sizes known later, refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from examples.strategies.cpu_outer_product import cpu_outer_product
from taskmap.decompose import BLOCK, CORE, LANES, LOCAL, REGISTER, SHARED, THREAD, WARP, MatMul, Strategy, dim
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, matmul, views
from taskmap.ir import spatial
from taskmap.ir.analysis.key import kernel_key
from taskmap.ir.errors import InputError, ScheduleError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Dim, Kernel, Var
from taskmap.ir.target import cuda_target
from taskmap.ir.task import Task
from taskmap.ir.types import DType, f16, f32
from taskmap.ir.verify.rules import RULES, verify
from taskmap.schedules.strategies.offer import OfferedStrategy
from tests.schedules.cpu.test_matmul import epilogue, product
from tests.schedules.cuda.test_matmul import LOOSE, case_of
from tests.schedules.cuda_running import cuda, simulated, source_of
from tests.schedules.graph_tasks import fused, tensor
from tests.schedules.running import Array, Case, call_kernel, compare_outputs, compiled, host_isa, target

Batch = tuple[Dim, ...]


def through_shared(m: Dim, n: Dim, k: Dim, batch: Batch = (), a: DType = f32, b: DType = f32) -> Strategy:
    tree = MatMul(m, n, k, a=a, b=b, batch=batch).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(8)
    return tree.move("a", SHARED).pad(4).move("b", SHARED).tile(2, 4).to(THREAD).split(1).tile(1, 1).done()


def from_memory(m: Dim, n: Dim, k: Dim, batch: Batch = ()) -> Strategy:
    """No operand is moved: each thread reads what it multiplies."""
    tree = MatMul(m, n, k, batch=batch).tile(16, 16).to(BLOCK).accumulate_in(REGISTER)
    return tree.split(1).tile(2, 4).to(THREAD).tile(1, 1).done()


def in_a_ring(m: Dim, n: Dim, k: Dim, batch: Batch = ()) -> Strategy:
    """Copies fetched ahead, asynchronously where rows are aligned; results go by way of shared memory."""
    tree = MatMul(m, n, k, batch=batch).tile(16, 32).to(BLOCK)
    tree = tree.accumulate_in(REGISTER, store=lambda copy: copy.move("src", SHARED).pad(4).done()).split(8)
    tree = tree.move("a", SHARED).prefetch(3).asynchronous().move("b", SHARED).prefetch(3).asynchronous()
    return tree.tile(2, 8).to(THREAD).split(1).move("a", REGISTER).move("b", REGISTER).tile(1, 1).done()


def tensor_cores(m: Dim, n: Dim, k: Dim, batch: Batch = (), a: DType = f16, b: DType = f16) -> Strategy:
    tree = MatMul(m, n, k, a=a, b=b, batch=batch).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(16)
    tree = tree.move("a", SHARED).prefetch(2).move("b", SHARED).prefetch(2)
    return tree.tile(16, 16).to(WARP).move("a", REGISTER).move("b", REGISTER).tile(16, 8).done()


def shared_sum(m: Dim, n: Dim, k: Dim, batch: Batch = ()) -> Strategy:
    """Three blocks share the sum of each tile."""
    tree = MatMul(m, n, k, batch=batch).tile(16, 16).to(BLOCK).split_sum(3).accumulate_in(REGISTER).split(8)
    return tree.move("a", SHARED).move("b", SHARED).tile(2, 4).to(THREAD).split(1).tile(1, 1).done()


def in_lanes(m: Dim, n: Dim, k: Dim, batch: Batch = ()) -> Strategy:
    """On a CPU: operands in a core's memory and in registers."""
    tree = MatMul(m, n, k, batch=batch).tile(4, 16).to(CORE).accumulate_in(REGISTER).split(8)
    return tree.move("a", LOCAL).move("b", LOCAL).split(1).tile(1, 16).tile(1, 1).to(LANES).done()


ON_GPU = (through_shared, from_memory, in_a_ring)
ON_CPU = (cpu_outer_product, in_lanes)


def made(strategy: Callable[..., Strategy] | Strategy, task: Task, isa: str = "sm_80") -> Kernel:
    name = getattr(strategy, "__name__", "tree")
    on_cpu = strategy in ON_CPU
    return OfferedStrategy(name, strategy).kernel(task, target() if on_cpu else cuda(isa))


def plain(kernel: Kernel, task: Task) -> Kernel:
    """The kernel's arguments with the dimensions of the task's tensors, for storage alone."""
    return replace(kernel, buffers=(*task.inputs, *task.outputs))


def check(strategy: Callable[..., Strategy], case: Case, seeds: Sequence[int] = (0,)) -> Kernel:
    """The kernel, after its results on this machine, or in the simulator, matched the definition."""
    kernel = made(strategy, case.task)
    verify(kernel, RULES)
    shell = plain(kernel, case.task)
    if kernel.launch is not None:
        source = source_of(kernel)
        for seed in seeds:
            for policy in ("late", "early") if "cp_async" in source.families else ("late",):
                results = simulated(case, shell, source, seed, policy)
                compare_outputs(case, results, LOOSE)
    else:
        lower(kernel, target=target(), verify=True)
        compare_outputs(case, _on_cpu(kernel, case), LOOSE)
    return kernel


def _on_cpu(kernel: Kernel, case: Case) -> list[Array]:
    ((source, address),) = compiled([(kernel, host_isa())])
    return call_kernel(plain(kernel, case.task), source, address, case.arrays, case.dims)


@pytest.mark.parametrize("form", ["plain", "left", "right", "batched", "several"])
@pytest.mark.parametrize("strategy", [*ON_GPU, *ON_CPU])
def test_forms_of_products(strategy: Callable[..., Strategy], form: str) -> None:
    check(strategy, case_of(fused([product(form, 17, 23, 11, f32, "generic", 2)])), seeds=(0, 1))


@pytest.mark.parametrize("strategy", [*ON_GPU, *ON_CPU])
@pytest.mark.parametrize("sizes", [(20, 24, 16), (17, 9, 21)], ids=str)
def test_what_comes_before_and_after_is_fused(strategy: Callable[..., Strategy], sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, w = tensor(m, k), tensor(k, n)
    y = matmul.mm(activations.relu(arithmetic.mul(a, 2.0)), arithmetic.add(w, tensor(n)))
    y = activations.gelu(arithmetic.add(y, tensor(n)))
    check(strategy, case_of(fused([arithmetic.add(y, tensor(m, n)), y])))


def test_operands_computed_along_columns() -> None:
    """Neighbours in memory are computed in vectors, which a mapping gives to threads."""

    def by_columns(m: Dim, n: Dim, k: Dim) -> Strategy:
        tree = MatMul(m, n, k).tile(16, 16).to(BLOCK).accumulate_in(REGISTER).split(8)
        tree = tree.move("a", SHARED, by=spatial(4, 8)).storage("column").pad(4).move("b", SHARED)
        return tree.tile(2, 4).to(THREAD).split(1).tile(1, 1).done()

    for rows in (32, 34):
        a = views.permute(activations.relu(tensor(16, rows)), (1, 0))
        text = source_of(check(by_columns, case_of(fused([matmul.mm(a, tensor(16, 24))])))).text
        assert ("tm_load<4>(in0" in text) == (rows == 32)


def test_elements_at_an_edge_are_computed_once() -> None:
    """Vectors that would end beyond it are no vectors: there is no second copy of the epilogue, for single elements."""
    for columns in (24, 21):
        y = activations.gelu(matmul.mm(tensor(19, 8), tensor(8, columns)))
        text = source_of(check(through_shared, case_of(fused([y])))).text
        assert text.count("out0[") + text.count("tm_store(out0") == 1


@pytest.mark.parametrize("strategy", [through_shared, in_a_ring, cpu_outer_product])
def test_operands_that_are_read_twice(strategy: Callable[..., Strategy]) -> None:
    x = tensor(18, 18)
    check(strategy, case_of(fused([matmul.mm(x, views.transpose(x, 0, 1))])))
    check(strategy, case_of(fused([arithmetic.add(matmul.mm(x, tensor(18, 18)), x)])))
    check(strategy, case_of(fused([arithmetic.add(matmul.mm(tensor(18, 18), x), views.transpose(x, 0, 1))])))


@pytest.mark.parametrize("strategy", [through_shared, in_a_ring, cpu_outer_product])
def test_parts_of_tensors(strategy: Callable[..., Strategy]) -> None:
    x = views.slice_(tensor(20, 40), 1, 3, 27)
    check(strategy, case_of(fused([matmul.mm(x, views.slice_(tensor(64, 16), 0, 0, 48, 2))])))


@pytest.mark.parametrize("strategy", [through_shared, in_a_ring, cpu_outer_product, in_lanes])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 16, 8), (5, 19, 30)], ids=str)
def test_sizes_known_later(strategy: Callable[..., Strategy], sizes: tuple[int, int, int]) -> None:
    m, n, k = Var("m"), Var("n"), Var("k")
    y = activations.relu(arithmetic.add(product("plain", m, n, k, f32, "generic"), tensor(n)))
    check(strategy, case_of(fused([y]), dict(zip((m, n, k), sizes, strict=True))))


def test_a_tree_takes_the_sizes_of_a_group() -> None:
    tree = through_shared(dim("m"), dim("n"), dim("k"))
    task = fused([product("plain", 17, 23, 11, f32, "generic")])
    of_tree, of_function = (OfferedStrategy("s", s).kernel(task, cuda()) for s in (tree, through_shared))
    assert kernel_key(of_tree) == kernel_key(of_function)


@pytest.mark.parametrize("form", ["plain", "left", "batched"])
def test_tensor_cores(form: str) -> None:
    y = product(form, 40, 24, 48, f16, "generic", 2)
    check(tensor_cores, case_of(fused([activations.relu(arithmetic.mul(y, 2.0))])))


def test_random_epilogues() -> None:
    chance = random.Random(7)
    for number in range(10):
        m, n, k = (chance.randint(1, 40) for _ in range(3))
        outputs = epilogue(
            product(chance.choice(("plain", "left", "right", "batched")), m, n, k, f32, "generic", 2), chance
        )
        strategy = chance.choice([*ON_GPU, *ON_CPU])
        check(strategy, case_of(fused(outputs), seed=number))


def test_blocks_that_share_a_sum_finish_with_the_epilogue() -> None:
    y = matmul.mm(activations.relu(tensor(18, 40)), tensor(40, 20))
    kernel = check(shared_sum, case_of(fused([activations.gelu(arithmetic.add(y, tensor(20)))])))
    assert kernel.launch is not None
    assert kernel.launch.counters
    m = Var("m")
    with pytest.raises(ScheduleError, match="memory for the parts of all tiles cannot have a symbolic size"):
        made(shared_sum, fused([matmul.mm(tensor(m, 40), tensor(40, 20))]))


def in_turns(m: Dim, n: Dim, k: Dim) -> Strategy:
    """As many blocks as multiprocessors."""
    tree = MatMul(m, n, k).tile(16, 16).to(BLOCK).persistent().accumulate_in(REGISTER).split(8)
    return tree.move("a", SHARED).move("b", SHARED).tile(2, 4).to(THREAD).split(1).tile(1, 1).done()


def test_blocks_that_take_tiles_in_turns() -> None:
    y = matmul.mm(activations.relu(tensor(50, 20)), tensor(20, 40))
    task = fused([activations.gelu(arithmetic.add(y, tensor(40)))])
    assert kernel_key(check(in_turns, case_of(task))) != kernel_key(made(through_shared, task))


def test_aligned_operands_stay_in_memory() -> None:
    """cp.async for what lies in memory, and not for what is computed."""
    a, b = tensor(32, 16), tensor(16, 32)
    families = source_of(made(in_a_ring, fused([matmul.mm(a, b)]))).families
    assert "cp_async" in families
    text = source_of(made(in_a_ring, fused([matmul.mm(activations.relu(a), activations.relu(b))]))).text
    assert "cp_async_16" not in text


def with_first_value(m: Dim, n: Dim, k: Dim) -> Strategy:
    return MatMul(m, n, k).tile(6, 32).to(CORE).accumulate_in(REGISTER, init=1.0).split(1).done()


def wide(m: Dim, n: Dim, k: Dim) -> Strategy:
    tree = MatMul(m, n, k).tile(128, 128).to(BLOCK).accumulate_in(REGISTER).split(128)
    return tree.move("a", SHARED).move("b", SHARED).tile(8, 8).to(THREAD).split(1).tile(1, 1).done()


def of_another_size(m: Dim, n: Dim, k: Dim) -> Strategy:
    return through_shared(m, n, 8)


def of_several(m: Dim, n: Dim, k: Dim) -> Strategy:
    return from_memory(m, n, k).tile(1, 1)


FIXED = from_memory(64, dim("n"), dim("k"))


def _refusals() -> list[tuple[Callable[..., Strategy] | Strategy, list[Node], str, str]]:
    mm = [product("plain", 17, 23, 11, f32, "generic")]
    many = [product("batched", 17, 23, 11, f32, "generic", 2)]
    half = [product("plain", 17, 23, 11, f16, "generic")]
    same = Var("n")
    square = from_memory(same, same, dim("k"))
    return [
        (from_memory, [activations.relu(tensor(3, 4))], "sm_80", "it is not a matrix product"),
        (wide, many, "sm_80", "it has no argument batch, and the product is one of many"),
        (FIXED, many, "sm_80", "and the product has 1 axes of a batch"),
        (FIXED, mm, "sm_80", "its m is 64, and the product's is 17"),
        (square, mm, "sm_80", "its n is n, and the product's is 23"),
        (from_memory, half, "sm_80", "it multiplies f32 × f32, summed in f32; the product is f16 × f16, summed in f32"),
        (from_memory, mm, "cpu", "it is for blocks of threads, and the target is"),
        (cpu_outer_product, mm, "sm_80", "it is for cores, and the target is"),
        (with_first_value, mm, "cpu", "its sums do not begin with 0"),
        (of_another_size, mm, "sm_80", "it multiplies 17×23×8; the product is 17×23×11"),
        (of_several, mm, "sm_80", "the tree is finished"),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(11))
def test_why_a_strategy_does_not_fit(number: int) -> None:
    strategy, outputs, where, why = _refusals()[number]
    with pytest.raises(ScheduleError) as refused:
        OfferedStrategy("s", strategy).kernel(fused(outputs), target() if where == "cpu" else cuda_target(where))
    assert why in (refused.value.why or str(refused.value))


def test_a_function_that_fails_is_an_error_of_the_user() -> None:
    def broken(m: Dim, n: Dim, k: Dim) -> Strategy:
        raise KeyError("tile")

    with pytest.raises(InputError, match=r"strategy broken failed\n  broken\(m=17, n=23, k=11\): KeyError: 'tile'"):
        OfferedStrategy("broken", broken).kernel(fused([product("plain", 17, 23, 11, f32, "generic")]), cuda())
