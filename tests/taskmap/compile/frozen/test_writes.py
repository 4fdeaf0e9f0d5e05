"""Frozen parameters, written in every possible way: the next call is right.

Each way runs on a small parameter (hashed) and on a large one (watched by pages), and again as on a system that
does not watch pages.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

import taskmap.backend.program.watch
from taskmap.backend.program.pages import page_watch
from taskmap.util.metrics import metrics
from tests.taskmap.compare import compiled, since

SIZES = {"small": 16, "large": 200}
"""Rows and columns: 1 KB, and 160 KB, of which most are whole pages."""


vectors: list[Tensor] = []
numbers = itertools.count(3)


def fresh() -> float:
    """A number that has not been written before."""
    return next(numbers) / 8


class Scaled(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n, n) + 0.5)
        self.register_buffer("scale", torch.rand(n, n) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (torch.softmax(self.weight, 0) * self.get_buffer("scale"))


def middle(t: Tensor) -> int:
    return t.numel() // 2 + 3


def one_element(m: Scaled) -> None:
    m.weight.data.view(-1)[middle(m.weight)] = fresh()


def rows(m: Scaled) -> None:
    m.weight.data[5:7] = 0


def set_parameter(m: Scaled) -> None:
    with torch.no_grad():
        m.weight.set_(torch.rand_like(m.weight))  # type: ignore[call-overload]  # its stub lacks tensors


def fill_storage(m: Scaled) -> None:
    storage: Any = m.weight.untyped_storage()
    storage.fill_(60 + next(numbers) % 4)


def copy_storage(m: Scaled) -> None:
    m.weight.untyped_storage().copy_(torch.rand_like(m.weight).untyped_storage())


def storage_item(m: Scaled) -> None:
    m.weight.untyped_storage()[4 * middle(m.weight) + 3] = 65


def capsule(m: Scaled) -> None:
    from_dlpack(m.weight.detach()).view(-1)[middle(m.weight)] = fresh()


def buffer_array(m: Scaled) -> None:
    m.get_buffer("scale").numpy().reshape(-1)[middle(m.weight)] = fresh()


def array(m: Scaled) -> None:
    m.weight.detach().numpy().reshape(-1)[middle(m.weight)] = fresh()


def raw_pointer(m: Scaled) -> None:
    ctypes.c_float.from_address(m.weight.data_ptr() + 4 * middle(m.weight)).value = fresh()


def system_call(m: Scaled) -> None:
    """The operating system's kernel writes the memory."""
    data = np.full(m.weight.numel(), 0.25, np.float32).tobytes()
    read, write = os.pipe()
    os.write(write, data[:4096])
    target: Any = m.weight.detach().numpy().reshape(-1).view(np.uint8)[:512]
    os.readv(read, [target])
    os.close(read)
    os.close(write)


def optimizer(m: Scaled) -> None:
    m.weight.grad = torch.randn_like(m.weight)
    torch.optim.SGD([m.weight], lr=3.0).step()
    m.weight.grad = None


def fused_optimizer(m: Scaled) -> None:
    m.weight.grad = torch.randn_like(m.weight)
    torch.optim.AdamW([m.weight], lr=3.0, fused=True).step()
    m.weight.grad = None


def vector(m: Scaled) -> None:
    flat = torch.rand(m.weight.numel())
    nn.utils.vector_to_parameters(flat, [m.weight])
    vectors.append(flat)


def vector_afterwards(m: Scaled) -> None:
    """The vector's memory has become the parameter's."""
    vectors.pop()[middle(m.weight)] = fresh()


def load(m: Scaled) -> None:
    m.load_state_dict({name: torch.rand_like(t) for name, t in m.state_dict().items()})


def load_assigning(m: Scaled) -> None:
    m.load_state_dict({name: torch.rand_like(t) for name, t in m.state_dict().items()}, assign=True)


def load_file(m: Scaled) -> None:
    file = io.BytesIO()
    torch.save(Scaled(len(m.weight)).state_dict(), file)
    file.seek(0)
    m.load_state_dict(torch.load(file, weights_only=True))


def swap(m: Scaled) -> None:
    torch.utils.swap_tensors(m.weight, nn.Parameter(torch.rand_like(m.weight)))  # type: ignore[no-untyped-call]


def replace(m: Scaled) -> None:
    m.weight = nn.Parameter(torch.rand_like(m.weight))


def foreach(m: Scaled) -> None:
    torch._foreach_mul_([m.weight.data], 2.0)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_([m.weight.data, m.get_buffer("scale")], 0.25)  # pyright: ignore[reportPrivateImportUsage]


def out(m: Scaled) -> None:
    torch.rand(m.weight.shape, out=m.weight.data)


def inference_mode(m: Scaled) -> None:
    with torch.inference_mode():
        m.weight.data.mul_(torch.rand_like(m.weight))


def initialised(m: Scaled) -> None:
    nn.init.kaiming_uniform_(m.weight.data)


def functional(m: Scaled) -> None:
    m.weight.data.index_put_((torch.tensor([1]), torch.tensor([2])), torch.tensor(fresh()))


def by_view(m: Scaled) -> None:
    m.weight.data.t()[2].add_(4)


def by_detached(m: Scaled) -> None:
    m.weight.detach()[3, 4] = fresh()


def no_grad(m: Scaled) -> None:
    with torch.no_grad():
        m.weight[3, 4] = fresh()


WAYS: list[Callable[[Scaled], None]] = [
    one_element, rows, set_parameter, fill_storage, copy_storage, storage_item, capsule, buffer_array, array,
    raw_pointer, system_call, optimizer, fused_optimizer, vector, vector_afterwards, load, load_assigning,
    load_file, swap, replace, foreach, out, inference_mode, initialised, functional, by_view, by_detached, no_grad,
]  # fmt: skip


@pytest.fixture(params=["pages", "hashes"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With pages watched by the system, and without."""
    if request.param == "hashes":
        monkeypatch.setattr(taskmap.backend.program.watch, "page_watch", lambda: None)
    elif page_watch() is None:
        pytest.skip("this system does not watch pages")
    return str(request.param)


def stays_right(run: Any, model: nn.Module, n: int, write: Callable[[], object]) -> None:
    """The second of two calls sees a write between them; without a write nothing is prepared again."""
    x = torch.eye(n)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        before = metrics()
        torch.testing.assert_close(run(x), model(x))
        assert since(before).constants_prepared == 0
        old = model(x)
    write()
    with torch.no_grad():
        assert not torch.equal(old, model(x)), "this way of writing has changed nothing"
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("size", SIZES)
def test_every_way_of_writing_is_noticed(size: str, system: str) -> None:
    n = SIZES[size]
    model = Scaled(n).eval()
    run = compiled(model)
    for way in WAYS:
        try:
            stays_right(run, model, n, lambda way=way: way(model))  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(f"{way.__name__} of a {size} parameter") from error


def outside(n: int, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Memory that is not PyTorch's own, of n * n floats, as an array that stays writable."""
    yield "numpy", np.full((n, n), 0.5, np.float32)
    yield "bytearray", np.frombuffer(bytearray(b"\x3f" * (4 * n * n)), np.float32).reshape(n, n)
    yield "anonymous map", np.frombuffer(mmap.mmap(-1, 4 * n * n), np.float32).reshape(n, n)
    file = tmp_path / "weights"
    file.write_bytes(b"\x3f" * (4 * n * n))
    yield "shared file", np.memmap(file, np.float32, "r+", shape=(n, n))
    yield "private file", np.memmap(file, np.float32, "c", shape=(n, n))


@pytest.mark.parametrize("size", SIZES)
def test_memory_from_elsewhere(size: str, system: str, tmp_path: Path) -> None:
    n = SIZES[size]
    model = Scaled(n).eval()
    run = compiled(model)
    for name, memory in outside(n, tmp_path):
        model.weight = nn.Parameter(torch.from_numpy(memory))
        flat = memory.reshape(-1)
        for place in (0, flat.size // 2, flat.size - 1):
            try:
                stays_right(run, model, n, lambda flat=flat, place=place: flat.__setitem__(place, flat[place] + 3))  # type: ignore[misc]
            except AssertionError as error:
                raise AssertionError(f"{name} of a {size} parameter at {place}") from error


def elsewhere(write: Callable[[], None]) -> None:
    """``write`` in a child of this process."""
    process = os.fork()
    if process == 0:
        write()
        os._exit(0)
    os.waitpid(process, 0)


@pytest.mark.parametrize("size", SIZES)
def test_memory_that_another_process_writes(size: str, system: str, tmp_path: Path) -> None:
    n = SIZES[size]
    model = Scaled(n).eval()
    run = compiled(model)
    model.weight = nn.Parameter(torch.rand(n, n).share_memory_())  # type: ignore[no-untyped-call]
    stays_right(run, model, n, lambda: elsewhere(lambda: raw_pointer(model)))
    anonymous = mmap.mmap(-1, 4 * n * n)
    model.weight = nn.Parameter(torch.frombuffer(anonymous, dtype=torch.float32).view(n, n))
    stays_right(run, model, n, lambda: elsewhere(lambda: raw_pointer(model)))
    file = tmp_path / "weights"
    torch.rand(n, n).numpy().tofile(file)
    mapped = torch.from_file(str(file), shared=True, size=n * n).view(n, n)
    model.weight = nn.Parameter(mapped)

    def rewrite() -> None:
        with file.open("r+b") as f:
            f.seek(4 * middle(mapped))
            f.write(np.float32(fresh()).tobytes())

    stays_right(run, model, n, rewrite)


def test_two_graphs_of_one_parameter_both_notice(system: str) -> None:
    n = SIZES["large"]
    model = Scaled(n).eval()
    runs = [compiled(model), compiled(nn.Sequential(model, nn.ReLU()).eval())]
    x = torch.rand(3, n)
    for first, second in (runs, runs[::-1]):
        rows(model)
        model.weight.data[0] += 1
        with torch.no_grad():
            torch.testing.assert_close(first(x), model(x))
            torch.testing.assert_close(second(x), model(x))
    before = metrics()
    with torch.no_grad():
        for run in runs:
            run(x)
    assert since(before).constants_prepared == 0


def test_a_forked_child_notices_its_own_writes(system: str) -> None:
    n = SIZES["large"]
    model = Scaled(n).eval()
    run = compiled(model)
    x = torch.eye(n)
    with torch.no_grad():
        run(x)
        process = os.fork()
        if process == 0:
            one_element(model)
            right = torch.allclose(run(x), model(x))
            rows(model)
            os._exit(0 if right and torch.allclose(run(x), model(x)) else 1)
        _, status = os.waitpid(process, 0)
        assert status == 0
        before = metrics()
        torch.testing.assert_close(run(x), model(x))
        assert since(before).constants_prepared == 0
        one_element(model)
        torch.testing.assert_close(run(x), model(x))


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_not_looked_at_where_the_user_says_so(
    size: str, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes that PyTorch counts are still noticed."""
    watched: list[Any] = []
    monkeypatch.setattr("taskmap.compile.frozen.Watch", lambda *arguments: watched.append(arguments))
    n = SIZES[size]
    model = Scaled(n).eval()
    run = torch.compile(model, backend="taskmap", options={"check_frozen": False})
    x = torch.rand(3, n)
    with torch.no_grad():
        before = metrics()
        torch.testing.assert_close(run(x), model(x))
        assert since(before).constants_prepared == 1
        assert not watched
        old = model(x)
        model.weight.data[5:7] = 0
        torch.testing.assert_close(run(x), old)  # as documented
        for write in (no_grad, set_parameter):
            write(model)
            torch.testing.assert_close(run(x), model(x))


def test_a_check_that_takes_long_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskmap.compile.frozen._MUCH", 1 << 10)
    monkeypatch.setattr(taskmap.backend.program.watch, "page_watch", lambda: None)
    model = Scaled(32).eval()
    run = compiled(model)
    with torch.no_grad():
        for _ in range(2):
            run(torch.rand(3, 32))
            rows(model)
    (said,) = [r.message for r in caplog.records if r.name == "taskmap.compile.frozen"]
    assert "'check_frozen': False" in said


def test_changed_weights_are_noticed_without_torchdynamos_guards_on_modules() -> None:
    """README's advice for small networks."""
    layer = nn.Linear(200, 200).eval()
    skip = torch.compiler.skip_guard_on_all_nn_modules_unsafe
    run = torch.compile(layer, backend="taskmap", options={"guard_filter_fn": skip, "threads": 1})
    x = torch.randn(3, 200)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: layer.weight.mul_(2),
            lambda: layer.weight.data.fill_(0.5),
            lambda: setattr(layer.weight, "data", torch.randn(200, 200)),
            lambda: setattr(layer, "weight", nn.Parameter(torch.randn(200, 200))),
        ):
            change()
            torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
