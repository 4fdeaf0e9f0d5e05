"""Inputs of programs: random numbers of any type, with the values that arithmetic treats differently.

The source of `numbers` is part of every printed program, so it uses only torch.
"""

from __future__ import annotations

import torch

DEVICE = torch.device("cpu")
"""The device of the tensors that `numbers` makes. A process that checks programs on a GPU changes it: with a default
device of PyTorch's own, Dynamo of PyTorch 2.11 traces the tensors that a program makes as the CPU's."""


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: int = 0) -> torch.Tensor:
    """A contiguous tensor on DEVICE; with ``special`` one in so many elements is NaN, infinite, extreme or a zero.

    Where ``special`` is negative, these elements are finite: the largest and smallest numbers, and some whose squares
    or sums overflow. The numbers are drawn on the CPU, the same for every device.
    """
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(DEVICE, dtype)
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        odd = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e4, -1e4, limits.tiny, 1.0]
        if special < 0:
            root, least = limits.max**0.5, limits.tiny * limits.eps
            odd = [limits.max, -limits.max, limits.max / 4, root, -2 * root, limits.tiny, -least, 0.0, 1.0]
    else:
        bounds = torch.iinfo(dtype)
        values = torch.randint(0 if bounds.min == 0 else -9, 10, shape, generator=generator).to(dtype)
        odd = [0, 1, bounds.max, bounds.min, bounds.max // 2]
    if special:
        chosen = torch.randint(0, abs(special), shape, generator=generator) == 0
        which = torch.randint(0, len(odd), shape, generator=generator)
        values = torch.where(chosen, torch.tensor(odd, dtype=dtype)[which], values)
    return values.to(DEVICE)
