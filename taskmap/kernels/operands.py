"""Torch tensors and numpy arrays as a kernel sees them: an address, a type, a shape and strides."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskmap.ir.errors import InputError, TypeMismatchError
from taskmap.ir.types import DType, dtype_named

_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrayOperand:
    """A tensor in memory. strides: in elements. refusal: why it cannot be written, or "". value: the object given."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    refusal: str
    value: Any

    @property
    def is_empty(self) -> bool:
        """True if it has no elements."""
        return 0 in self.shape

    def extent(self) -> tuple[int, int]:
        """The bytes it occupies: the first, and one past the last. Only for tensors with elements."""
        reach = [(n - 1) * s * self.dtype.bytes for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
        return self.address + low, self.address + high + self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] with strides {self.strides}"


def operand(value: Any, name: str, device: str = "cpu") -> ArrayOperand:
    """A torch tensor or a numpy array as a kernel on ``device`` sees it, for the parameter called ``name``.

    Raises InputError for anything else, and for tensors that are not plain memory of the device.
    """
    torch = sys.modules.get("torch")  # not imported here: too slow for callers with numpy only
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, name, device, torch)
    if isinstance(value, np.ndarray) and device == "cpu":
        return _of_numpy(value, name)
    raise InputError(
        f"the argument {name} is a {type(value).__name__}",
        hint=f"Pass a torch tensor {'or a numpy array' if device == 'cpu' else f'on {device}'}; sizes go by keyword.",
    )


def _of_torch(value: Any, name: str, device: str, torch: Any) -> ArrayOperand:
    unusable = _unusable(value, device, torch)
    if unusable is not None:
        why, hint = unusable
        raise InputError(
            f"the argument {name} is not plain memory of {'the CPU' if device == 'cpu' else device}", why=why, hint=hint
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise InputError(
            f"the argument {name} requires a gradient",
            why="a kernel has no derivative.",
            hint="Call it under torch.no_grad(), or pass x.detach().",
        )
    dtype = _dtype(str(value.dtype).removeprefix("torch."), name)
    return ArrayOperand(dtype, tuple(value.shape), tuple(value.stride()), value.data_ptr(), "", value)


def _unusable(value: Any, device: str, torch: Any) -> tuple[str, str] | None:
    """The reason why a kernel on ``device`` cannot use a tensor's memory, and what to pass instead; None if it can."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if value.device.type == "meta" or (fake is not None and isinstance(value, fake.FakeTensor)):
        kind = "a meta tensor" if value.device.type == "meta" else "a fake tensor"
        return (
            f"it is {kind}: it has a shape and a type, but no elements.",
            f"Make a tensor with elements, as by torch.empty(x.shape, dtype=x.dtype, device={device!r}), "
            "or give a model its weights: model.to_empty(...), load_state_dict(..., assign=True).",
        )
    if value.layout != torch.strided:
        return f"its layout is {value.layout}.", "Pass x.to_dense()."
    if str(value.device) != device:
        return f"its device is {value.device}.", "Pass x.cpu()." if device == "cpu" else f"Pass x.to({device!r})."
    if torch._C._functorch.is_functorch_wrapped_tensor(value) or torch._is_functional_tensor(value):
        return "it is a tensor of a torch.func transformation.", "Call the kernel outside of torch.func and vmap."
    if value.is_neg():
        return "its sign is kept beside its memory.", "Pass x.resolve_neg()."
    if value._is_zerotensor():
        return "it is zero without memory.", "Pass x.clone()."
    return None


def _of_numpy(value: np.ndarray[Any, Any], name: str) -> ArrayOperand:
    dtype = _dtype(value.dtype.name, name)
    if not value.dtype.isnative:
        raise InputError(f"the argument {name} has the byte order of another machine", hint="Pass a native copy of it.")
    if any(s % dtype.bytes for s, n in zip(value.strides, value.shape, strict=True) if n > 1):
        raise InputError(
            f"the argument {name} has strides of {value.strides} bytes",
            why=f"they are not multiples of an element's {dtype.bytes} bytes.",
            hint="Pass numpy.ascontiguousarray(x).",
        )
    strides = tuple(s // dtype.bytes for s in value.strides)
    refusal = "" if value.flags.writeable else "the array is read-only."
    return ArrayOperand(dtype, value.shape, strides, value.ctypes.data, refusal, value)


def _dtype(name: str, argument: str) -> DType:
    try:
        return dtype_named(_NAMES.get(name, name))
    except TypeMismatchError as error:
        raise InputError(f"the argument {argument} has the element type {name}", why=f"{error.what}.") from error


def element_type(value: Any, name: str) -> DType:
    """The element type of a tensor, also of one without elements. Raises InputError for other objects."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        raise InputError(
            f"the argument {name} is a {type(value).__name__}", hint="Pass a torch tensor or a numpy array."
        )
    return _dtype(str(dtype).removeprefix("torch."), name)


def native_type(dtype: DType, module: Any) -> Any:
    """An element type as torch or numpy (``module``) calls it. Raises InputError for a type that it does not have."""
    name = next((theirs for theirs, ours in _NAMES.items() if ours == dtype.name), "")
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{module.__name__} has no type {dtype}", hint="Pass torch tensors.")
    return found
