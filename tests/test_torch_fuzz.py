"""Random programs of PyTorch's operators: a slice of the fuzzer's, and proof that it detects differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from benchmarks.torch_fuzz import check as checking
from benchmarks.torch_fuzz import numbers
from benchmarks.torch_fuzz.__main__ import MOST_OWN, fuzz
from benchmarks.torch_fuzz.check import Verdict, check
from benchmarks.torch_fuzz.definitions import Decomposed
from benchmarks.torch_fuzz.generate import generate
from benchmarks.torch_fuzz.program import Input, Program, script
from benchmarks.torch_fuzz.reduce import reduce
from benchmarks.torch_fuzz.worker import Worker
from taskmap.ir.errors import IndexOutOfRangeError

PROGRAMS = {"cpu": 16, "cuda-sim": 6}


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The first seed of a slice, shifted by --seed."""
    return 1000 * int(request.config.getoption("--seed") or 0)


@pytest.fixture(params=PROGRAMS)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    made = Worker(request.param)
    yield made
    made.close()


def test_random_programs(worker: Worker, seed: int) -> None:
    failed = {}
    for k in range(seed, seed + PROGRAMS[worker.target]):
        program = worker.generate(k)
        assert program is not None
        verdict = worker.check(program)
        if verdict.failed:
            failed[k] = f"{verdict.kind}: {verdict.evidence}\n{program.text}"
    assert not failed, "\n".join(f"seed {k}: {told}" for k, told in failed.items())


def test_a_seed_gives_one_program() -> None:
    assert [generate(k) for k in range(5)] == [generate(k) for k in range(5)]


class Placed(TorchFunctionMode):
    """Refuses to make a tensor on the default device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in _device_constructors() or (kwargs or {}).get("device") is not None, func
        return func(*args, **(kwargs or {}))


def test_programs_make_tensors_beside_their_arguments() -> None:
    """Dynamo of PyTorch 2.11 does not know a default device, so programs for a GPU would mix devices."""
    made = 0
    for seed in range(60):
        program = generate(seed)
        make, function = program.functions()
        given = make(*program.calls[0])
        made += "device=" in program.text
        with warnings.catch_warnings(), Placed():
            warnings.simplefilter("ignore")
            function(*given)
    assert made > 5


def test_arguments_are_made_on_the_device_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = PROGRAM.functions()[0](3, 4, 5)
    assert on_cpu[0].device.type == "cpu"
    monkeypatch.setattr(numbers, "DEVICE", torch.device("meta"))
    assert PROGRAM.functions()[0](3, 4, 5)[0].device.type == "meta"
    assert 'DEVICE = torch.device("cuda")' in script(PROGRAM, "cuda")


X = Input("x0", "numbers(1, (a, b, ), torch.float32)")
LINES = ("v0 = x0 + 1", "v1 = v0.t()", "v2 = v1 * 2", "x0.add_(1)")
PROGRAM = Program(7, (X,), LINES, ("v2", "v1", "v0"), ((3, 4, 5),))

Function = Callable[..., tuple[Tensor, ...]]


def _with(change: Callable[[list[Any], tuple[Tensor, ...]], Any]) -> Callable[[Function, Program, str], Function]:
    """Replaces taskmap by eager with changed results."""

    def compiler(function: Function, program: Program, target: str) -> Function:
        def call(*inputs: Any) -> tuple[Tensor, ...]:
            return tuple(change(list(inputs), function(*inputs)))

        return call

    return compiler


def _refuse(inputs: list[Any], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    raise ValueError("no")


FAULTS: dict[str, Callable[[list[Any], tuple[Tensor, ...]], Any]] = {
    "right": lambda inputs, out: out,
    "value": lambda inputs, out: (out[0] * 1.001, *out[1:]),
    "alias": lambda inputs, out: (*out[:2], out[2].clone()),
    "layout": lambda inputs, out: (out[0].contiguous(), *out[1:]),
    "type": lambda inputs, out: (out[0].double(), *out[1:]),
    "mutation": lambda inputs, out: [inputs[0].mul_(1.5), *out][1:],
    "error": _refuse,
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_taskmap", _with(FAULTS[kind]))
    assert check(PROGRAM, "cpu").kind == kind


def test_a_result_on_another_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_taskmap", _with(lambda inputs, out: (out[0].to("meta"), *out[1:])))
    verdict = check(PROGRAM, "cpu")
    assert verdict.kind == "type"
    assert "on meta for torch.float32[4, 3] on cpu" in verdict.evidence


def test_rounding_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("v0 = x0.sum(0)", "v1 = v0 - x0.sum(0).floor()", "v2 = (v0 * 1e3).floor()")
    program = Program(7, (X,), lines, ("v1", "v2"), ((50, 4, 5),))
    nearly = _with(lambda inputs, out: [r * (1 + 3e-5) for r in out])
    monkeypatch.setattr(checking, "_taskmap", nearly)
    assert check(program, "cpu").kind == "value"
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: f(x.flip(0)))  # another order of summation
    assert check(program, "cpu").kind in ("right", "rounding")


INFINITE = Input("x0", "numbers(1, (33, ), torch.float32).fill_(torch.inf)")
EXACT = Input("x0", "numbers(1, (33, ), torch.float64).requires_grad_()")


def test_a_nan_of_eager_that_float64_does_not_have_is_eagers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(7, (INFINITE,), ("v0 = torch.where(x0.isinf(), torch.nan, x0)",), ("v0",), ((3, 4, 5),))
    assert program.functions()[1](*program.functions()[0](3, 4, 5))[0].isnan().all()
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (x.clone(),))
    assert check(program, "cpu").kind == "value", "both precisions are NaN"
    program = Program(7, (INFINITE,), ("v0 = F.gelu(x0)",), ("v0",), ((3, 4, 5),))
    if not program.functions()[1](*program.functions()[0](3, 4, 5))[0].isnan().any():
        pytest.skip("this PyTorch's gelu of infinity is right")
    assert check(program, "cpu").kind == "rounding", "infinity is its own gelu"
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.zeros_like(x),))
    assert check(program, "cpu").kind == "value"


def test_an_infinity_is_right_where_float64_is_beyond_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager adds infinities of both signs where another order of the sum has one infinity."""
    large = Input("x0", "numbers(1, (33, ), torch.float32).fill_(1e30)")
    program = Program(7, (large,), ("v0 = x0 * 3e10 - x0 * 1e10",), ("v0",), ((3, 4, 5),))
    assert program.functions()[1](*program.functions()[0](3, 4, 5))[0].isnan().all()
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.full_like(x, torch.inf),))
    assert check(program, "cpu").kind == "rounding"
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.full_like(x, -torch.inf),))
    assert check(program, "cpu").kind == "value"


def test_the_first_term_beyond_the_type_gives_a_sum_of_products_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """(+inf) + (-inf) in eager; a fused multiply-add keeps the infinity, whatever is subtracted from it."""
    large = Input("x0", "torch.tensor([[1e20, -1e30]])")
    program = Program(
        7, (large,), ("v0 = x0 * torch.tensor([[1.0, -1.0]])", "v1 = torch.mm(x0, v0.t())"), ("v1",), ((3, 4, 5),)
    )
    assert program.functions()[1](*program.functions()[0](3, 4, 5))[0].isnan().all()
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.full((1, 1), torch.inf),))
    assert check(program, "cpu").kind == "rounding"
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.full((1, 1), 3.0),))
    assert check(program, "cpu").kind == "value"


@pytest.mark.parametrize(("result", "kind"), [(3e38, "rounding"), (2e38, "value"), (-torch.inf, "value")])
def test_an_infinity_of_eager_may_be_a_number(monkeypatch: pytest.MonkeyPatch, result: float, kind: str) -> None:
    """Twice 3e38 overflows, half of that does not."""
    large = Input("x0", "torch.tensor([3e38, 1.0])")
    program = Program(7, (large,), ("v0 = x0 * 2", "v1 = v0 * 0.5"), ("v1",), ((3, 4, 5),))
    assert program.functions()[1](*program.functions()[0](3, 4, 5))[0][0] == torch.inf
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.tensor([result, 1.0]),))
    assert check(program, "cpu").kind == kind


def test_a_constant_in_f32_of_a_kernel_in_f64_is_pytorchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(7, (EXACT,), ("v0 = F.hardsigmoid(x0)",), ("v0",), ((3, 4, 5),), grad=True)
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: ((x + 3).clamp(0, 6) / 6,))
    assert check(program, "cpu").kind in ("right", "rounding")
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: ((x + 3).clamp(0, 6) * 0.16666667,))
    assert check(program, "cpu").kind == "value"


def test_a_layout_that_only_a_traced_graph_foretells_is_pytorchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a graph is traced, an expanded axis of size 1 keeps a stride that eager sets to 0, and strides are ordered
    by it. Inductor returns this layout, too."""
    one = Input("x0", "numbers(1, (3, c, c, 1, ), torch.float32).movedim(-1, 0)")
    lines = ("v0 = x0.expand(3, 1, 3, -1, -1, -1).swapaxes(0, -2)", "v1 = torch.where(x0 > 0, v0, 0)")
    program = Program(7, (one,), lines, ("v1",), ((1, 1, 3),))
    assert check(program, "cpu").kind in ("right", "PyTorch's own")

    def contiguous(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.where(x > 0, x.expand(3, 1, 3, -1, -1, -1).swapaxes(0, -2), 0).mT.contiguous().mT,)

    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: contiguous)
    assert check(program, "cpu").kind == "layout"


def test_attention_of_a_nan_is_judged_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Input("x0", "numbers(1, (1, 1, 3, 4, ), torch.float32).index_fill_(2, torch.tensor([1]), torch.nan)")
    line = "v0 = F.scaled_dot_product_attention(x0, x0.nan_to_num(), x0.nan_to_num())"
    program = Program(7, (one,), (line,), ("v0",), ((3, 4, 5),))

    def formula(x: Tensor) -> tuple[Tensor, ...]:
        known = x.nan_to_num()
        return ((x @ known.mT / 2).softmax(-1) @ known,)

    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: formula)
    assert check(program, "cpu").kind in ("right", "rounding")
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (formula(x)[0] + 1,))
    assert check(program, "cpu").kind == "value"


def test_an_error_of_ours_beside_one_of_pytorchs_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    program = replace(PROGRAM, lines=("v0 = x0 + 1", "v1 = x0 * 2"), results=("v0", "v1"))
    theirs = _with(lambda inputs, out: (out[0] * 1.5, out[1]))
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: theirs(f, p, "cpu"))
    monkeypatch.setattr(checking, "_taskmap", theirs)
    assert check(program, "cpu").kind == "PyTorch's own"
    for change in (lambda i, out: (out[0] * 1.5, out[1] * 1.5), lambda i, out: (out[0] * 1.8, out[1])):
        monkeypatch.setattr(checking, "_taskmap", _with(change))
        assert check(program, "cpu").kind == "value"


def test_an_error_is_pytorchs_own_if_a_backend_of_its_own_fails_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are judged by the first backend alone: the second one shares PyTorch's decompositions."""

    def fails(inputs: list[Any], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise RuntimeError("memory is written twice")

    second = checking.JUDGES[1]
    right, failing, wrong = (_with(f) for f in (lambda i, out: out, fails, lambda i, out: (out[0] * 1.5, *out[1:])))
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: (failing if backend == second else right)(f, p, ""))
    monkeypatch.setattr(checking, "_taskmap", failing)
    assert check(PROGRAM, "cpu").kind == "PyTorch's own"
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: right(f, p, ""))
    assert check(PROGRAM, "cpu").kind == "error"
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: (wrong if backend == second else right)(f, p, ""))
    monkeypatch.setattr(checking, "_taskmap", wrong)
    assert check(PROGRAM, "cpu").kind == "value"


def test_an_index_out_of_range_is_one_error_in_any_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Any:
        def fails(inputs: list[Any], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            raise error

        return _with(fails)

    theirs = failing(RuntimeError("index 1 is out of bounds for dimension 0 with size 1"))
    monkeypatch.setattr(checking, "_taskmap", failing(IndexOutOfRangeError("index out of range in add_gather")))
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: theirs(f, p, ""))
    assert check(PROGRAM, "cpu").kind == "PyTorch's own"
    other = failing(RuntimeError("memory is written twice"))
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: other(f, p, ""))
    assert check(PROGRAM, "cpu").kind == "error"


def _not_functional(node: str, written: str, placeholders: str) -> Exception:
    """PyTorch's error for a graph that writes to a tensor of its own, as that of index_fill does in PyTorch 2.11."""
    return AssertionError(f"n={node}, n.args[0]={written}, placeholders={placeholders}, graph=graph():")


def _beyond_storage(sizes: str) -> Exception:
    """PyTorch's error for a view of another type that AOTAutograd makes again, with symbolic sizes."""
    return RuntimeError(f"setStorage: sizes {sizes}, and itemsize 4 are out of bounds for storage of size 8")


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (
            _not_functional("copy_", "empty_like", "{a, b}"),
            _not_functional("copy_", "empty", "{b, a}"),
            "PyTorch's own",
        ),
        (_not_functional("copy_", "empty_like", "{a, b}"), _not_functional("add_", "empty", "{b, a}"), "error"),
        (Warning("size u0"), Warning("size u0"), "PyTorch's own"),
        (Warning("size u0"), Warning("size u1"), "error"),
        (Warning("size u0"), RuntimeError("memory is written twice"), "error"),
        (_beyond_storage("[8, 1], strides [1, 1]"), _beyond_storage("[8], strides [1]"), "PyTorch's own"),
        (_beyond_storage("[8, 1], strides [1, 1]"), RuntimeError("sizes [8, 1], strides [1, 1]"), "error"),
    ],
)
def test_errors_are_alike_if_their_words_are(
    ours: Exception, theirs: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets print in any order, and nodes have names of their own; not every exception's name has the word Error."""

    def failing(error: Exception) -> Any:
        def fails(inputs: list[Any], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            raise error

        return _with(fails)

    monkeypatch.setattr(checking, "_taskmap", failing(ours))
    monkeypatch.setattr(checking, "_other", lambda f, p, backend: failing(theirs)(f, p, ""))
    assert check(PROGRAM, "cpu").kind == kind


class Blaming:
    """Stands in for a worker whose every program is PyTorch's own failure."""

    target = "cpu"

    def generate(self, seed: int) -> Program:
        return replace(PROGRAM, seed=seed)

    def check(self, program: Program) -> Verdict:
        return Verdict("PyTorch's own", f"{program.seed} " + 500 * "x")


def test_the_record_tells_some_failures_of_pytorchs_own() -> None:
    record: dict[str, Any] = {"verdicts": {}, "failures": [], "own": [], "seconds": 0.0, "count": 0}
    fuzz(3, MOST_OWN + 2, Blaming(), None, record)  # type: ignore[arg-type]  # a stand-in
    assert record["verdicts"] == {"PyTorch's own": MOST_OWN + 2}
    assert [seed for seed, _ in record["own"]] == list(range(3, 3 + MOST_OWN))
    assert all(told.startswith(f"{seed} x") and len(told) == 300 for seed, told in record["own"])
    assert not record["failures"]


def test_layouts_of_shapes_that_depend_on_values_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    program = replace(PROGRAM, lines=("v0 = x0[x0 > 0]", "v1 = x0 * 2"), results=("v0", "v1"))
    monkeypatch.setattr(checking, "_taskmap", _with(lambda inputs, out: (out[0], out[1].t().contiguous().t())))
    assert check(program, "cpu").kind == "layout"


def test_a_failure_is_reduced_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = ("v3 = x0.exp()", "v4 = v3.sum(0)", "v5 = v4.softmax(0)", "v6 = torch.stack([v0, v0])")
    program = Program(7, (X,), (*LINES[:3], *extra), ("v5", "v2", "v6"), ((3, 4, 5),))

    def vectors(inputs: list[Any], out: tuple[Tensor, ...]) -> list[Tensor]:
        return [r * 1.01 if r.dim() == 1 and all(r is not x for x in inputs) else r for r in out]

    monkeypatch.setattr(checking, "_taskmap", _with(vectors))
    small, verdict = reduce(program, check(program, "cpu"), lambda p: check(p, "cpu"))
    assert verdict.kind == "value"
    assert len(small.lines) == len(small.results) == 1
    names: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    exec(script(small, "cpu", str(verdict)), names)
    assert "got" in names


def test_a_process_that_dies_or_hangs_is_replaced() -> None:
    dying = Program(1, (X,), ("import ctypes", "ctypes.string_at(0)"), ("x0",), ((3, 4, 5),))
    hanging = Program(1, (X,), ("while True: pass",), ("x0",), ((3, 4, 5),))
    worker = Worker("cpu", seconds=6)
    try:
        assert worker.check(dying) == Verdict("crash", "the process ended with SIGSEGV")
        assert worker.check(hanging).kind == "hang"
        assert worker.generate(0) == generate(0)
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("large", "dtype", "line"),
    [
        (1e36, "float32", "v0 = F.layer_norm(x0, (3,))"),
        (1e36, "float32", "v0 = F.group_norm(x0.reshape(1, 2, 3), 2)"),
        (1e308, "float64", "v0 = torch.stack((x0.var(1), x0.std(1), *torch.var_mean(x0, 1)))"),
    ],
)
def test_squares_beyond_the_type_are_judged_by_the_definition(
    large: float, dtype: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager's kernels give an infinity or NaN by the place of the large element."""
    values = Input("x0", f"torch.tensor([[1, {large}, -2], [2, 5, 3]], dtype=torch.{dtype})")
    program = Program(7, (values,), (line,), ("v0",), ((3, 4, 5),))

    def formula(x: Tensor) -> tuple[Tensor, ...]:
        center = x.mean(1, keepdim=True)
        squares = (x - center).square().sum(1, keepdim=True)
        if dtype == "float64":
            var = (squares / 2).flatten()
            return (torch.stack((var, var.sqrt(), var, center.flatten())),)
        unit = (x - center) * (squares / 3 + 1e-5).rsqrt()
        return (unit if "layer" in line else unit.reshape(1, 2, 3),)

    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: formula)
    assert check(program, "cpu").kind in ("right", "rounding")
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (formula(x)[0] * 2,))
    assert check(program, "cpu").kind == "value"


def test_a_deviation_is_defined_where_its_square_is_beyond_the_type() -> None:
    """PyTorch's kernel for a GPU gives an infinity, of which a remainder is NaN."""
    values = torch.tensor([3e38, 1.0, -2.0])
    with Decomposed(everything=False):
        deviation, variance = values.std(), values.var()
    assert deviation == values.double().std().float()
    assert variance.isinf()


@pytest.mark.parametrize(
    ("line", "values", "right", "dtype"),
    [
        ("x0.sum()", "[1.2e308, 1.2e308, -1.2e308, 3.0, -1.2e308, 0.0, -1.2e308]", -1.2e308, "float64"),
        ("torch.var_mean(x0)[1]", "[1.0, torch.inf, 2.0, 3.0]", torch.inf, "float32"),
    ],
)
def test_sums_that_overflow_in_some_orders_are_judged_by_their_value(
    line: str, values: str, right: float, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(
        7,
        (Input("x0", f"torch.tensor({values}, dtype=torch.{dtype})"),),
        (f"v0 = {line}",),
        ("v0",),
        ((3, 4, 5),),
    )
    (made,) = (function(*make(3, 4, 5)) for make, function in [program.functions()])
    assert not torch.isfinite(made[0])
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (x.new_tensor(right),))
    assert check(program, "cpu").kind == "rounding"
    wrong = "value" if "mean" in line else "rounding"  # a sum without a value says nothing
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (x.new_tensor(0.5),))
    assert check(program, "cpu").kind == wrong


def test_a_finite_value_is_no_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    values = Input("x0", "torch.tensor([1.0, torch.inf, 2.0])")
    program = Program(7, (values,), ("v0 = x0 * 2",), ("v0",), ((3, 4, 5),))
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: lambda x: (torch.where(x > 9, 5.0, x * 2),))
    assert check(program, "cpu").kind == "value"


@pytest.mark.parametrize("name", ["relu6", "softshrink", "celu", "gelu"])
def test_gradients_at_nan_and_beyond_the_type_are_judged_by_the_definition(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At NaN eager's kernels give 0 or NaN in a full vector and the incoming gradient after the last one."""
    value, more = ("2.5e154", ", approximate='tanh'") if name == "gelu" else ("nan", "")
    values = Input("x0", f"torch.full((33,), float('{value}'), dtype=torch.float64).requires_grad_()")
    program = Program(7, (values,), (f"v0 = F.{name}(x0{more})",), ("v0",), ((3, 4, 5),), grad=True)

    def compiled(slope: float) -> Callable[[Tensor], tuple[Tensor]]:
        def function(x: Tensor) -> tuple[Tensor]:
            x.register_hook(lambda grad: grad * slope)  # type: ignore[no-untyped-call]  # of PyTorch
            return (x * 1.0,)

        return function

    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: compiled(1.0))
    assert check(program, "cpu").kind == "rounding"
    monkeypatch.setattr(checking, "_taskmap", lambda f, p, t: compiled(0.5))
    assert check(program, "cpu").kind == "value"
