"""Whole models on the simulated GPU: torch.compile(..., options={"target": "cuda-sim"}) against eager PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import taskmap
from taskmap.errors import IndexOutOfRangeError, InputError
from tests.taskmap.compare import assert_like, compiled, since

SIM = {"target": "cuda-sim"}


def check(model: nn.Module, *args: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5, **options: object) -> None:
    model.eval()
    with torch.no_grad():
        want = model(*args)
        got = compiled(model, options={**SIM, **options})(*args)
    assert_like(got, want, rtol, atol)


@pytest.mark.parametrize("gpu", ["sm_75", "sm_80", "H200"])
def test_a_linear_layer(gpu: str) -> None:
    before = taskmap.metrics()
    check(nn.Sequential(nn.Linear(65, 48), nn.ReLU()), torch.randn(37, 65), gpu=gpu)
    count = since(before)
    assert count.externs == 0
    assert count.kernels_compiled + count.kernels_found > 0


def relative_error(**options: object) -> float:
    """The error of an f32 product on the simulated GPU against f64, relative to the size of its elements."""
    chance = torch.Generator().manual_seed(0)
    a, b = torch.randn(40, 256, generator=chance), torch.randn(256, 24, generator=chance)
    found = compiled(torch.mm, options={**SIM, "gpu": "sm_80", **options})(a, b)
    return float((found.double() - a.double() @ b.double()).abs().max() / 16)


@pytest.mark.usefixtures("torch_settings")
def test_single_precision_is_rounded_only_where_that_is_allowed() -> None:
    exact, rounded = (0, 1e-6), (1e-4, 3e-3)  # 24 bits, and 11

    def check(bounds: tuple[float, float], **options: object) -> None:
        torch._dynamo.reset()
        assert bounds[0] <= relative_error(**options) <= bounds[1]

    check(exact)
    check(rounded, tf32=True)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    check(rounded)
    check(exact, tf32=False)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    check(exact)
    check(rounded, tf32=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    check(rounded)


def test_an_older_gpu_has_no_tf32() -> None:
    assert relative_error(gpu="sm_75", tf32=True) < 1e-6


def test_a_small_convolutional_network() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    check(model, torch.randn(2, 3, 17, 17))


class Block(nn.Module):
    """A transformer's block, small."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        grown: torch.Tensor = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return grown


def test_a_transformers_block() -> None:
    check(Block(), torch.randint(0, 50, (2, 11)))


def test_f16() -> None:
    check(nn.Sequential(nn.Linear(64, 48), nn.GELU()).half(), torch.randn(33, 64).half(), rtol=1e-2, atol=1e-3)


def test_an_index_out_of_range_raises_at_once() -> None:
    table = nn.Embedding(20, 16).eval()
    with torch.no_grad():
        function = compiled(table, options=SIM)
        function(torch.tensor([3, 19]))
        with pytest.raises(IndexOutOfRangeError, match="embedding"):
            function(torch.tensor([3, 20]))


def test_sizes_may_change() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()
    with torch.no_grad():
        function = compiled(model, options=SIM, dynamic=True)
        for n in (3, 17, 256):
            x = torch.randn(n, 8)
            assert_like(function(x), model(x), 1e-4, 1e-5)


def test_training() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    model(x).square().sum().backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled(model, options=SIM)(x).square().sum().backward()
    for p, g in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-5)


def test_operators_that_pytorch_runs_stand_between_kernels() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x * 2 + 1).values + 1

    x = torch.randn(4, 40)
    before = taskmap.metrics()
    assert_like(compiled(function, options=SIM)(x), function(x))
    assert since(before).externs > 0


def test_kernels_of_one_text_have_grids_of_their_own() -> None:
    """Element-wise kernels of whole blocks do not mention the number of elements."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y * 2

    x, y = torch.randn(4096), torch.randn(8192)
    assert_like(compiled(function, options=SIM)(x, y), function(x, y))


def test_unaligned_arguments_are_copied() -> None:
    x = torch.randn(1001)[1:]
    assert x.data_ptr() % 16
    assert_like(compiled(lambda x: x * 2, options=SIM)(x), x * 2)


def test_a_changed_parameter_is_seen() -> None:
    model = nn.Conv2d(3, 4, 3).eval()
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        function = compiled(model, options=SIM)
        function(x)
        model.weight.mul_(2)
        assert_like(function(x), model(x), 1e-4, 1e-5)


def test_explain_and_dump(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU()).eval()
    with torch.no_grad():
        report = taskmap.explain(model, torch.randn(37, 64), options={**SIM, "dump_dir": tmp_path, "gpu": "sm_90a"})
    (group,) = report.groups
    assert report.target == "cuda:sm_90a"
    assert "cuda." in group.code.schedule
    assert "registers" in group.code.resources
    assert group.code.resources in str(report).replace("\n", " ") or "registers" in str(report)
    (source,) = tmp_path.rglob("*.cu")
    assert "__global__ void __launch_bounds__" in source.read_text()
    assert group.code.symbol in source.name
    (resources,) = tmp_path.rglob("*resources.txt")
    assert "registers" in resources.read_text()


def test_a_generated_file_names_the_schedule_the_mapping_and_the_lines_of_the_model(tmp_path: Path) -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return (y + \
                1).relu()  # fmt: skip

    with torch.no_grad():
        compiled(model, options={**SIM, "dump_dir": tmp_path})(torch.randn(37, 64).half(), torch.randn(64, 48).half())
    (source,) = tmp_path.rglob("*.cu")
    head = source.read_text().partition('extern "C"')[0].splitlines()
    assert all(line.startswith("// ") and not line.endswith("\\") for line in head)
    first = model.__code__.co_firstlineno
    assert f"// from test_sim.py:{first + 1}  y = x @ w" in head
    assert any(line.startswith(f"// from test_sim.py:{first + 2}  return") for line in head)
    assert any(re.match(r"// cuda\.matmul\(mma_m16n8k16_f16_f32, tile=", line) for line in head)
    assert any(re.match(r"// total: f32\[\d+, \d+\] is held by (spatial|repeat)\(", line) for line in head)


def test_the_target_has_to_be_where_the_tensors_are() -> None:
    with pytest.raises(Exception, match="the target is 'cuda', but the model's tensors are on cpu") as caught:
        compiled(lambda x: x + 1, options={"target": "cuda"})(torch.randn(3))
    assert InputError.__name__ in str(caught.value)


def test_sums_of_integers_that_are_repeated() -> None:
    """A value that fits an int is one operand of vectors of 64-bit integers."""

    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x.expand(2, -1, -1).sum(0)

    x = torch.randint(-9, 10, (8, 4), dtype=torch.int8)
    assert torch.equal(compiled(repeated, options=SIM)(x), repeated(x))
