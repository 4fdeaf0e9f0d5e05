"""The device of a model's tensors, which decides the target. Without PyTorch, which only GPUs need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from taskmap.ir.errors import InputError
from taskmap.options import Options


class Device(Protocol):
    """A device, described as a torch.device does, which is one."""

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Processor:
    """The device of tensors in the memory of this machine's CPU."""

    type: str = "cpu"
    index: int | None = None

    def __str__(self) -> str:
        return self.type


CPU = Processor()


def chosen_target(options: Options, device: Device) -> str:
    """The target of ``options``, or else of the device. Raises InputError when the tensors are elsewhere."""
    if options.target is None:
        return "cuda" if device.type == "cuda" else "cpu"
    wanted = "cuda" if options.target == "cuda" else "cpu"
    if device.type != wanted:
        raise InputError(
            f"the target is {options.target!r}, but the model's tensors are on {device}",
            hint=f"Move the model and its inputs: .to({wanted!r}), or leave the option 'target' out.",
        )
    return options.target
