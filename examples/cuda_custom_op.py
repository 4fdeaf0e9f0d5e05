"""A custom CUDA kernel as a PyTorch operator, with or without a GPU: python examples/cuda_custom_op.py

The kernel is written in script. On CUDA tensors it is compiled and launched on PyTorch's stream; on CPU tensors the
same CUDA C++ runs in the simulator. The operator works in eager mode and inside torch.compile, with any backend.
"""
# mypy: ignore-errors
# pyright: reportInvalidTypeForm=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# The reason: the parameters of kernels are annotated with tensor types, which are not types to a type checker.

from functools import cache

import torch

import taskmap
from taskmap.ir.script.read import block, ceil_div, dim, instruction, kernel, register, rsqrt, thread
from taskmap.ir.types import f32

rows, columns = dim("rows"), dim("columns")
shuffle = instruction("shuffle_xor")
EPSILON = 1e-6


@kernel(grid=(ceil_div(rows, 4),), threads=128)
def rms_norm_kernel(x: f32[rows, columns], weight: f32[columns], y: f32[rows, columns]):
    """Each warp normalises a row. Reads beyond the edge give 0; writes beyond it are skipped."""
    row, lane = block.x * 4 + thread // 32, thread % 32
    total = register(f32[1], init=0.0)
    for step in range(ceil_div(columns, 32)):
        total[0] += x[row, step * 32 + lane] * x[row, step * 32 + lane]
    for distance in [16, 8, 4, 2, 1]:
        total[0] += shuffle(32, total[0], distance)  # every lane adds what the lane so far away has
    scale = rsqrt(total[0] / f32(columns) + EPSILON)
    for step in range(ceil_div(columns, 32)):
        j = step * 32 + lane
        y[row, j] = x[row, j] * scale * weight[j]


@cache
def built(device):
    if device.type != "cuda":
        return taskmap.build(rms_norm_kernel, "cuda-sim")
    with torch.cuda.device(device):  # of several GPUs, the one that the tensors are on
        return taskmap.build(rms_norm_kernel, "cuda")


@torch.library.custom_op("taskmap_examples::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x / sqrt(mean(x²) + 1e-6) * weight along the last dimension. x: any shape, f32."""
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x.shape[-1]
    built(x.device)(x.view(-1, width), weight, y.view(-1, width))
    return y


@rms_norm.register_fake
def rms_norm_shape(x, weight):
    """The result as torch.compile needs it: its shape, without values."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class Block(torch.nn.Module):
    """A layer that uses the operator among others."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(rms_norm(x, self.weight))))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x, model = torch.randn(2, 5, 48, device=device), Block(48).to(device)

    expected = torch.nn.functional.rms_norm(x.double(), (48,), model.weight.double(), EPSILON)
    print(f"the operator on {device}: error {(rms_norm(x, model.weight) - expected).abs().max():.1e}")

    target = "cuda" if device == "cuda" else "cuda-sim"
    compiled = torch.compile(model, backend="taskmap", options={"target": target})
    with torch.no_grad():
        print(f"inside torch.compile for {target}: error {(compiled(x) - model(x)).abs().max():.1e}")
        print(taskmap.explain(model, x, options={"target": target}))


if __name__ == "__main__":
    main()
