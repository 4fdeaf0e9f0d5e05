"""Parameters as constants: values derived from them are computed once, and again after a change."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import taskmap
from taskmap.util.metrics import metrics
from tests.taskmap.compare import assert_like, compiled, since


class Scaled(nn.Module):
    """A layer whose weight is computed only from parameters, at a cost that makes keeping it worthwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("scale", torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.softmax(self.weight, 0) @ self.weight.t() * self.get_buffer("scale")
        return x @ weight


X = torch.randn(3, 16)


def add_in_place(m: Scaled) -> None:
    with torch.no_grad():
        m.weight.add_(0.5)


def swap_data(m: Scaled) -> None:
    m.weight.data = torch.randn(16, 16)


def swap_data_twice(m: Scaled) -> None:
    for _ in range(4):
        m.weight.data = torch.randn(16, 16)


def change_buffer(m: Scaled) -> None:
    m.get_buffer("scale").mul_(3)


def load(m: Scaled) -> None:
    m.load_state_dict({"weight": torch.randn(16, 16), "scale": torch.rand(16)})


def load_assigning(m: Scaled) -> None:
    m.load_state_dict({"weight": torch.randn(16, 16), "scale": torch.rand(16)}, assign=True)


def write_data(m: Scaled) -> None:
    m.weight.data.mul_(2)  # counts no version


def write_through_numpy(m: Scaled) -> None:
    array = m.weight.detach().numpy()
    array *= 2


CHANGES = [
    add_in_place,
    swap_data,
    swap_data_twice,
    change_buffer,
    load,
    load_assigning,
    write_data,
    write_through_numpy,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_is_noticed(change: Callable[[Scaled], None]) -> None:
    model = Scaled().eval()
    run = compiled(model)
    with torch.no_grad():
        before = metrics()
        for _ in range(3):
            assert_like(run(X), model(X), rtol=1e-4, atol=1e-5)
        assert since(before).constants_prepared == 1
    change(model)
    with torch.no_grad():
        for _ in range(3):
            assert_like(run(X), model(X), rtol=1e-4, atol=1e-5)


def test_an_unchanged_parameter_is_prepared_once() -> None:
    model = Scaled().eval()
    run = compiled(model)
    before = metrics()
    with torch.no_grad():
        for _ in range(20):
            run(X)
    assert since(before).constants_prepared == 1
    assert since(before).calls == 20


def test_kernels_of_constants_alone_are_compiled_as_ones_that_run_once() -> None:
    with torch.no_grad():
        report = taskmap.explain(Scaled().eval(), X)
    groups = {g.code.symbol.endswith("_once"): g.once for g in report.groups}
    assert groups == {True: True, False: False}


def test_freeze_off_computes_at_every_call() -> None:
    model = Scaled().eval()
    run = compiled(model, options={"freeze": False})
    before = metrics()
    with torch.no_grad():
        assert_like(run(X), model(X), rtol=1e-4, atol=1e-5)
    assert since(before).constants_prepared == 0


def test_with_gradients_nothing_is_frozen() -> None:
    model = Scaled()
    before = metrics()
    compiled(model)(X).sum().backward()
    assert since(before).constants_prepared == 0
    assert model.weight.grad is not None


def test_parameters_made_in_inference_mode_count_no_versions_and_are_not_frozen() -> None:
    with torch.inference_mode():
        model = Scaled().eval()
        run = compiled(model)
        assert_like(run(X), model(X), rtol=1e-4, atol=1e-5)
        model.weight.add_(1)
        assert_like(run(X), model(X), rtol=1e-4, atol=1e-5)


def test_a_buffer_that_the_model_itself_changes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            state: Tensor = self.get_buffer("state")
            result = x @ (state @ state.t())
            state.add_(1)
            return result

    mine, theirs = Counting(), Counting()
    run = compiled(mine)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert_like(run(x), theirs(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.state, theirs.state)


def test_two_models_of_one_class_keep_their_own_constants() -> None:
    first, second = Scaled().eval(), Scaled().eval()
    run = [compiled(first), compiled(second)]
    with torch.no_grad():
        for _ in range(2):
            assert_like(run[0](X), first(X), rtol=1e-4, atol=1e-5)
            assert_like(run[1](X), second(X), rtol=1e-4, atol=1e-5)


def test_threads_call_while_a_parameter_changes() -> None:
    model = Scaled().eval()
    run = compiled(model)
    results: list[Tensor] = []
    with torch.no_grad():
        run(X)

        def work() -> None:
            with torch.no_grad():
                results.extend(run(X) for _ in range(30))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        model.weight.add_(1)
        new = model(X)
        for t in threads:
            t.join()
        torch.testing.assert_close(run(X), new, rtol=1e-4, atol=1e-5)
    assert all(result.isfinite().all() for result in results)
