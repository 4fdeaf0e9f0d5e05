"""Large outputs get the memory of earlier ones, and only when nobody can see it."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import set_eval_frame

import taskmap.calls.memory
from taskmap.compile.output_pool import KeptOutputs

SHAPE, STRIDES = (1024, 512), (512, 1)


@pytest.fixture(autouse=True)
def nothing_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts the memory kept by all graphs of a process, including earlier tests'."""
    monkeypatch.setattr(taskmap.calls.memory, "_ALL", {})


def take(pool: KeptOutputs, shape: tuple[int, ...] = SHAPE, strides: tuple[int, ...] = STRIDES) -> Tensor:
    return pool.take(0, shape, strides, torch.float32)


def test_memory_that_nobody_holds_is_used_again() -> None:
    pool = KeptOutputs()
    first = take(pool)
    address = first.data_ptr()
    del first
    assert take(pool, (512, 1024), (1, 512)).data_ptr() == address


@pytest.mark.parametrize("held", [False, True])
def test_free_memory_is_known_while_dynamo_watches_frames(held: bool) -> None:
    """An argument of a Python function then has one more reference."""
    pool = KeptOutputs()
    first = take(pool)
    address, storage = first.data_ptr(), first.untyped_storage() if held else None
    del first
    before = set_eval_frame(False)
    try:
        again = take(pool)
    finally:
        set_eval_frame(before)
    assert (again.data_ptr() == address) is not held
    del storage


class Weak(list[Any]):
    """A tensor held by a weak reference to its storage."""

    def __init__(self, t: Tensor) -> None:
        super().__init__([weakref.ref(t.untyped_storage())])


def in_a_thread(t: Tensor) -> threading.Event:
    """A tensor held by a thread that waits, until the result is set."""
    done = threading.Event()
    threading.Thread(target=lambda kept: done.wait(60), args=(t.untyped_storage(),), daemon=True).start()
    return done


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda t: t,
    "view": lambda t: t[3:, 1],
    "detached": lambda t: t.detach(),
    "data": lambda t: t.data,
    "array": lambda t: t.numpy(),
    "memoryview": lambda t: memoryview(t.numpy()),  # type: ignore[arg-type]  # an array is a buffer
    "bytes view": lambda t: t.view(torch.uint8),
    "capsule": lambda t: t.__dlpack__(),
    "storage": lambda t: t.untyped_storage(),
    "typed storage": lambda t: t.storage(),  # type: ignore[no-untyped-call]
    "slice of a storage": lambda t: [t.untyped_storage()],
    "gradient": lambda t: t.detach().requires_grad_().square(),
    "weak reference": Weak,
    "method": lambda t: t.untyped_storage().tolist,
    "iterator": lambda t: iter(t),
    "parameter": lambda t: torch.nn.Parameter(t),
    "closure": lambda t: lambda: t,
    "thread": in_a_thread,
    "set": lambda t: torch.empty(0).set_(t.untyped_storage(), 5, (7,), (1,)),
    "lazy clone": lambda t: torch._lazy_clone(t),  # pyright: ignore[reportPrivateImportUsage]
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", HOLDERS)
def test_an_output_stays_as_it_is_while_something_holds_its_memory(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="taskmap")
    x = torch.full(SHAPE, 6.0)
    compiled(x)
    mine = compiled(x)
    place = (ctypes.c_float * mine.numel()).from_address(mine.data_ptr())
    held = HOLDERS[name](mine)
    del mine
    for value in range(3):
        compiled(torch.full(SHAPE, float(value)))
    if name == "weak reference" and held[0]() is None:
        return  # the memory is gone, so nobody can look at it
    assert (place[0], place[-1]) == (7, 7)
    if isinstance(held, threading.Event):
        held.set()


@pytest.mark.parametrize(
    "hold", [lambda t: t, lambda t: t[3:, 1], lambda t: t.detach(), lambda t: t.numpy(), lambda t: t.__dlpack__()]
)
def test_memory_that_somebody_holds_is_not(hold: Any) -> None:
    pool = KeptOutputs()
    first = take(pool).fill_(7)
    held = hold(first)
    address = first.data_ptr()
    del first
    again = take(pool).fill_(1)
    assert again.data_ptr() != address
    del held


def test_memory_shared_with_another_process_or_resized_is_not_used_again() -> None:
    pool = KeptOutputs()
    shared: Tensor = take(pool).share_memory_()  # type: ignore[no-untyped-call]
    address = shared.data_ptr()
    del shared
    second = take(pool)
    assert second.data_ptr() != address
    second.untyped_storage().resize_(16)
    del second
    assert take(pool).fill_(1).sum() == 1024 * 512


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskmap.calls.memory, "MOST", 5 << 20)
    pool = KeptOutputs()
    kept = [pool.take(slot, SHAPE, STRIDES, torch.float32) for slot in range(4)]
    assert pool.bytes == 2 * 1024 * 512 * 4
    del kept
    pool.clear()
    assert pool.bytes == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_compiled_model_overwrites_no_output_that_is_still_held(mode: Any) -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend="taskmap", dynamic=False)
    inputs = [torch.randn(700, 701) for _ in range(4)]
    with mode():
        outputs = [compiled(x) for x in inputs]
        for x, y in zip(inputs, outputs, strict=True):
            assert torch.equal(y, x * 2 + 1)
        addresses = {y.data_ptr() for y in outputs}
        del outputs, y
        assert compiled(inputs[0]).data_ptr() in addresses


def test_outputs_saved_for_backward_are_held() -> None:
    x = torch.randn(700, 701, requires_grad=True)
    compiled = torch.compile(lambda x: x.exp(), backend="taskmap", dynamic=False)
    first, second = compiled(x), compiled(x * 0)
    grads = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (first, second)]
    assert torch.allclose(grads[0], x.exp())
    assert torch.equal(grads[1], torch.zeros_like(x))
