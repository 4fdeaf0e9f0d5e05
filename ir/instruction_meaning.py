"""What an instruction does, from its spec and its owners alone: the reference that every way of running it must
equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.ir.errors import InputError
from taskmap.ir.evaluate import convert
from taskmap.ir.instructions import Instruction, MatMulSpec
from taskmap.ir.mapping import TaskMapping
from taskmap.ir.types import DType

Array = NDArray[Any]


def distribute(tile: Array, owner: TaskMapping) -> Array:
    """The registers of all workers, an array (workers, slots), that hold ``tile`` as ``owner`` says."""
    held = [owner(worker) for worker in range(owner.num_workers)]
    return np.array([[tile[task] for task in tasks] for tasks in held], tile.dtype)


def collect(registers: Array, owner: TaskMapping) -> Array:
    """The tile that registers (workers, slots) hold. Raises InputError when workers that share an element disagree."""
    tile = np.zeros(owner.task_shape, registers.dtype)
    seen: set[tuple[int, ...]] = set()
    for worker in range(owner.num_workers):
        for task, value in zip(owner(worker), registers[worker], strict=True):
            if task in seen and tile[task] != value and not (np.isnan(tile[task]) and np.isnan(value)):
                raise InputError(f"worker {worker} holds {value} as element {task}, another one {tile[task]}")
            tile[task] = value
            seen.add(task)
    return tile


def multiply(c: Array, a: Array, b: Array, dtype: DType) -> Array:
    """c + a @ b in ``dtype``, that of c, one k after the other, each product and each sum rounded.

    bf16 is float32 that holds bf16 values.
    """
    total = c
    for k in range(a.shape[-1]):
        term = convert(a[..., :, k, None], dtype) * convert(b[..., k, None, :], dtype)
        total = convert(total + convert(term, dtype).reshape(c.shape), dtype)
    return total


def execute(instruction: Instruction, c: Array, a: Array, b: Array) -> Array:
    """The new registers of c, (workers, slots), after one MatMul instruction on registers of that form.

    Raises InputError for an instruction that is no MatMul: a Move changes no value.
    """
    spec, owner_a, owner_b = instruction.spec, instruction.owner_a, instruction.owner_b
    if not isinstance(spec, MatMulSpec) or owner_a is None or owner_b is None:
        raise InputError(f"{instruction} does not multiply")
    tiles: Sequence[Array] = [
        collect(registers, owner) for registers, owner in ((c, instruction.owner_c), (a, owner_a), (b, owner_b))
    ]
    with np.errstate(all="ignore"):
        result = multiply(tiles[0], tiles[1], tiles[2], spec.c)
    return distribute(result, instruction.owner_c)
