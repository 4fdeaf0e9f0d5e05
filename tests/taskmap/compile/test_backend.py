"""The backend as a guest of torch.compile: options, modes, several graphs and models, threads, and no traces left."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from taskmap.backend.cpu.host import detect_host, parse_isa
from taskmap.ir.errors import IndexOutOfRangeError, InvalidOptionError, KernelStoreError, UnsupportedError
from taskmap.torch_backend import compile_fx
from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, check, compiled, since

X = torch.linspace(-3, 3, 24).reshape(4, 6)


def cause(error: BackendCompilerFailed) -> BaseException:
    """The backend's error inside Dynamo's."""
    inner: BaseException = error.inner_exception
    return inner


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_compile(mode: str) -> None:
    assert_like(compiled(lambda x: x.relu() * 2, mode=mode)(X), X.relu() * 2)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"mode": "fastest"}, "unknown mode 'fastest'"),
        ({"options": {"iza": "avx2"}}, "Did you mean 'isa'"),
        ({"options": {"isa": "sse"}}, "option 'isa' cannot be 'sse'"),
        ({"options": {"threads": 0}}, "at least 1"),
    ],
)
def test_what_is_no_option_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=message) as caught:
        compiled(lambda x: x + 1, **how)(X)
    assert isinstance(cause(caught.value), InvalidOptionError)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_instruction_sets(isa: str) -> None:

    def function(x: Tensor) -> Tensor:
        return (x.exp() @ x.t()).softmax(-1)

    run = compiled(function, options={"isa": isa})
    if detect_host().supports(parse_isa(isa)):
        assert_like(run(X), function(X), rtol=1e-5, atol=1e-6)
        return
    with pytest.raises(BackendCompilerFailed, match=f"does not support {isa}") as caught:
        run(X)
    assert isinstance(cause(caught.value), UnsupportedError)


def test_every_stage_is_dumped(tmp_path: Path) -> None:
    compiled(lambda x: x.relu().sum(-1), options={"dump_dir": tmp_path / "dump"})(X)
    (folder,) = (tmp_path / "dump").iterdir()
    assert folder.name == "000_inference"
    names = sorted(path.name for path in folder.iterdir())
    assert [name[:2] for name in names] == [f"{i:02d}" for i in range(len(names))]
    for stage in ("fx.txt", "graph.txt", "plan.txt", "task_", "kernel_", "program.txt", ".c"):
        assert any(stage in name for name in names), stage
    compiled(lambda x: x * 3, options={"dump_dir": tmp_path / "dump"})(X)
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["000_inference", "001_inference"]


def test_a_dump_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendCompilerFailed, match="cannot write to the option 'dump_dir'"):
        compiled(lambda x: x * 3, options={"dump_dir": tmp_path / "file"})(X)


def test_passes_are_verified_on_request(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 7), nn.Softmax(-1)).eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert_like(compiled(model, options={"verify_passes": True})(x), model(x), rtol=1e-4, atol=1e-5)


def test_profile_runs_each_kernel_by_itself() -> None:
    assert_like(compiled(lambda x: (x @ x.t()).softmax(-1), options={"profile": True})(X), (X @ X.t()).softmax(-1))


def test_a_second_compilation_finds_the_kernels_in_the_store() -> None:
    function = lambda x: (x.tanh() * 2).sum(-1)  # noqa: E731
    before = metrics()
    compiled(function)(X)
    first = since(before)
    torch._dynamo.reset()
    before = metrics()
    compiled(function)(X)
    second = since(before)
    assert first.kernels_compiled > 0
    assert second.kernels_compiled == 0
    assert second.kernels_found == first.kernels_compiled + first.kernels_found


def test_a_cache_dir_that_is_not_private_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(BackendCompilerFailed) as caught:
        compiled(lambda x: x * 3, options={"cache_dir": folder})(X)
    assert isinstance(cause(caught.value), KernelStoreError)


def test_graph_breaks() -> None:
    seen: list[float] = []

    def f(x: Tensor) -> Tensor:
        y = (x * 2).relu()
        torch._dynamo.graph_break()
        seen.append(float(y.sum()))
        return y.exp() if seen[-1] > 0 else y

    before = metrics()
    assert_like(compiled(f)(X), f(X))
    assert since(before).graphs >= 2
    assert seen[0] == pytest.approx(seen[1])


def test_several_models_live_side_by_side() -> None:
    models = [nn.Sequential(nn.Linear(6, n), nn.ReLU(), nn.Linear(n, 2)).eval() for n in (3, 8, 17)]
    runs = [compiled(m) for m in models]
    with torch.no_grad():
        for _ in range(2):
            for run, model in zip(runs, models, strict=True):
                assert_like(run(X), model(X), rtol=1e-5, atol=1e-6)


def test_threads_call_one_model() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)).eval()
    run = compiled(model)
    inputs = [torch.randn(32, 64) for _ in range(4)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
        run(inputs[0])
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(40):
                if not torch.allclose(run(inputs[i]), wanted[i], rtol=1e-4, atol=1e-5):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_inference_mode_and_no_grad() -> None:
    model = nn.Linear(6, 3)
    run = compiled(model)
    with torch.inference_mode():
        got = run(X)
        assert got.is_inference()
        torch.testing.assert_close(got, model(X))
    with torch.no_grad():
        assert_like(run(X), model(X))
    assert run(X).requires_grad


def test_other_backends_are_as_they_were() -> None:
    def f(x: Tensor) -> Tensor:
        result: Tensor = torch.sort(torch.cumprod(x, 0) + 1)[0] * 2
        return result

    def frames() -> list[int]:
        counts: list[int] = []

        def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
            counts.append(len(gm.graph.nodes))
            return gm.forward

        torch._dynamo.reset()
        torch.compile(f, backend=backend)(X)
        return counts

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    before = frames()
    torch._dynamo.reset()
    compiled(f)(X)
    assert frames() == before
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert torch.is_grad_enabled()


def test_an_index_out_of_range_names_the_line() -> None:
    table = nn.Embedding(5, 3)
    run = compiled(lambda i: table(i) * 2)
    with torch.no_grad():
        assert_like(run(torch.tensor([0, 4])), table(torch.tensor([0, 4])) * 2)
        with pytest.raises(IndexOutOfRangeError, match=r"out of range in .*embedding"):
            run(torch.tensor([0, 5]))
        assert_like(run(torch.tensor([1, 3])), table(torch.tensor([1, 3])) * 2)


def test_another_shape_stride_or_dtype_compiles_anew() -> None:
    run = compiled(lambda x: x * 2 + 1, dynamic=False)
    for x in (X, X[:3], X.t(), X.double(), X.int(), X[0], X.bool()):
        assert_like(run(x), x * 2 + 1)


# Operators that PyTorch runs.


def test_externs_between_native_segments() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, s, v = torch.linalg.svd((x * 2).tanh(), full_matrices=False)
        values, order = torch.sort(s + 1, descending=True)
        return (u * values) @ v, order * 2, values

    before = metrics()
    check(f, torch.randn(5, 4), rtol=1e-4, atol=1e-5)
    assert since(before).externs >= 2


def test_an_extern_that_returns_a_view_of_what_it_was_given() -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x))

    before = metrics()
    check(lambda x: (there_and_back(x * 2) + 1, there_and_back(x) * 3, there_and_back(x + 1)), torch.randn(3, 4, 2))
    assert since(before).externs == 6


def test_random_numbers_come_in_eagers_order() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.rand_like(x)
        b = torch.randn(4, 6)
        return b * 2 + x, a + x

    run = compiled(f)
    run(X)
    torch.manual_seed(3)
    got = run(X)
    torch.manual_seed(3)
    assert_like(got, f(X))


def test_equal_random_calls_draw_twice() -> None:
    a, b = compiled(lambda x: (torch.rand(5) + x[0, :5], torch.rand(5) + x[0, :5]))(X)
    assert not torch.equal(a, b)


def test_an_operator_of_the_users_own_is_called_once_a_call() -> None:
    calls: list[float] = []

    def note(x: Tensor) -> Tensor:
        calls.append(float(x.sum()))
        return x.clone()

    operator = torch.library.custom_op("taskmap_test::note", note, mutates_args=())
    operator.register_fake(torch.empty_like)
    run = compiled(lambda x: operator(x * 2) + 1)
    assert_like(run(X), X * 2 + 1)
    run(X)
    assert len(calls) == 2


def test_random_numbers_of_python() -> None:
    """TorchDynamo passes them as f64 to a graph to which it showed f32."""

    def f(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        draw = random.Random(3)
        a, b = draw.random(), draw.uniform(2, 3)
        return x + a, y * a, a * b, a, draw.randrange(100) * x, x * random.random()

    inputs = torch.ones(3), torch.ones(3, dtype=torch.float64)
    run = torch.compile(f, backend=compile_fx)
    for _ in range(2):
        random.seed(1)
        wanted = f(*inputs)
        random.seed(1)
        for mine, theirs in zip(run(*inputs), wanted, strict=True):
            torch.testing.assert_close(mine, theirs)
