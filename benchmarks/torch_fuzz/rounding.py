"""Differences that rounding explains: compared with a run in float64, and with runs disturbed at every step.

A result is right when it is about as far from the float64 result as eager's is. Where programs compare, round or
branch on values, or cancel, no bound follows from that: then eager itself is run with noise of a few units in the last
place on its inputs and on each operator's result, and the elements that move with it are as uncertain as they move.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.torch_fuzz.compare import unequal
from benchmarks.torch_fuzz.definitions import BY_PLACE, PRODUCTS, Decomposed, aten
from benchmarks.torch_fuzz.numbers import numbers
from benchmarks.torch_fuzz.program import Program
from benchmarks.torch_fuzz.run import Run, call, largest

SAMPLES = 12
FACTOR = 4.0
SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.nansum.default, aten.mean.default, aten.mean.dim}
Values = list[tuple[str, Any]]


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each floating-point result of an operator moves by a few units in its last place; sums take another order."""

    def __init__(self, seed: int, ulps: float = 2.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)
        self.ulps = ulps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SUMS and args[0].is_floating_point():
            args = (self.in_another_order(*args), *args[1:])
        out = func(*args, **(kwargs or {}))
        held = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, Tensor) and value.dtype.is_floating_point:
                if func._schema.is_mutable or value.untyped_storage().data_ptr() not in held:
                    self.move(value)
        return out

    def in_another_order(self, x: Tensor, dims: Any = None, *_: Any) -> Tensor:
        """The elements along ``dims`` permuted: where parts of a sum overflow, the order decides."""
        for d in dims or range(x.ndim):
            x = (
                x.index_select(d, torch.randperm(x.shape[d], generator=self.generator, device="cpu").to(x.device))
                if x.ndim
                else x
            )
        return x

    def move(self, value: Tensor) -> None:
        """Add noise in place, once to each place of memory."""
        if value.numel() == 0 or any(k == 0 and n > 1 for n, k in zip(value.shape, value.stride(), strict=True)):
            return
        noise = torch.randn(value.shape, generator=self.generator, dtype=torch.float64, device="cpu")
        amount = self.ulps * torch.finfo(value.dtype).eps
        value.copy_((value.double() * (1 + amount * noise.to(value.device))).to(value.dtype))


def in_float64(program: Program, sizes: tuple[int, int, int]) -> Run:
    """The program with every type of floating-point number replaced by float64, the inputs' values as they are."""
    made, body = program.text.split("def program")
    for name in ("torch.float32", "torch.bfloat16", "torch.float16"):
        body = body.replace(name, "torch.float64")
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "numbers": _doubled}
    exec(f"{made}def program{body}", names)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return call(names["program"], names["inputs"](*sizes), program.grad)
    finally:
        torch.set_default_dtype(before)


def _doubled(*args: Any) -> Tensor:
    values = numbers(*args)
    return values.double() if values.dtype.is_floating_point else values


def disturbed(program: Program, sizes: tuple[int, int, int], seed: int) -> Run:
    """A run of eager with noise on everything."""
    make, function = program.functions()
    inputs = make(*sizes)
    noise = Noise(seed)
    with torch.no_grad():
        for x in inputs:
            if x.dtype.is_floating_point:
                noise.move(x)
    with noise:
        return call(function, inputs, program.grad)


def explained(program: Program, sizes: tuple[int, int, int], name: str, want: Tensor, got: Tensor) -> str:
    """The explanation by rounding for the difference of two values of one name; empty if there is none."""
    want, got = want.detach(), got.detach()
    if want.dtype.is_floating_point and _near(program, sizes, name, want, got):
        return "as near to float64 as eager"
    if _defined(program, sizes, name, want, got):
        return "as PyTorch's own definitions of the operators"
    low, high = _range(want), _range(want)
    uncertain = torch.zeros(want.shape, dtype=torch.bool, device=want.device)
    for seed in range(SAMPLES):
        try:
            sample = dict(disturbed(program, sizes, seed).named())[name]
        except Exception:  # noise may lead where eager refuses
            continue
        if not isinstance(sample, Tensor) or sample.shape != want.shape:
            return "noise changes its shape"
        value = _range(sample.detach())
        uncertain |= value.isnan() != want.double().isnan()
        uncertain |= value.isinf() != want.double().isinf()
        low, high = torch.fmin(low, value), torch.fmax(high, value)
    w, g = want.double(), got.double()
    reach = FACTOR * (high - low).nan_to_num(0, 0, 0)
    if not want.dtype.is_floating_point:
        fine = (w == g) | (reach > 0)
    else:
        small = 4 * torch.finfo(want.dtype).eps * w.abs().nan_to_num(0, 0, 0) + torch.finfo(want.dtype).tiny
        fine = ((w - g).abs() <= reach + small) | (w == g) | (w.isnan() & g.isnan())
    return "noise moves eager as far" if bool((fine | uncertain).all()) else ""


def _range(t: Tensor) -> Tensor:
    return t.double()


def _near(program: Program, sizes: tuple[int, int, int], name: str, want: Tensor, got: Tensor) -> bool:
    """As near to the float64 result as eager is. A NaN in eager but not in float64, or an infinity where the float64
    result is within the type, is eager's own error. In place of such a NaN an infinity is right if the float64 result
    is beyond the type; in a sum of products always: the term that overflows first decides, and a fused multiply-add
    rounds no product."""
    try:
        reference = dict(in_float64(program, sizes).named())[name]
    except Exception:  # types that no longer fit
        return False
    if not isinstance(reference, Tensor) or reference.shape != want.shape:
        return False
    r, w, g = reference.detach().double(), want.double(), got.double()
    beyond = r.to(want.dtype)
    infinite = g.isinf() if any(p in program.text for p in PRODUCTS) else g == beyond
    same = (w == g) | (w.isnan() & g.isnan()) | (w.isnan() & infinite)
    finite = r.isfinite() & g.isfinite() & (w.isfinite() | w.isnan() | beyond.isfinite())
    if not bool((same | finite).all()):
        return False
    theirs = largest((w - r)[finite & w.isfinite()])
    ours = largest((g - r)[finite])
    return ours <= 2 * theirs + 2 * torch.finfo(want.dtype).eps * max(largest(want), largest(r[finite]))


def _defined(program: Program, sizes: tuple[int, int, int], name: str, want: Tensor, got: Tensor) -> bool:
    """Equal to what PyTorch's definitions lead to, where its kernels do not: attention by its fused kernel gives 0 for
    a query that is NaN, by the formula NaN; some kernels for float64, beside which nothing here is more exact, have
    constants in f32; and moments that exceed the range of the type, and gradients at NaN, are what they are by their
    place in a vector. Elements that equal eager's need no definition.
    """
    exact = want.dtype == torch.float64
    if not exact and not any(name in program.text for name in ("attention", *BY_PLACE)):
        return False
    make, function = program.functions()
    try:
        with sdpa_kernel(SDPBackend.MATH), Decomposed(everything=exact):
            reference = dict(call(function, make(*sizes), program.grad).named())[name]
    except Exception:  # a definition that serves the compiler only
        return False
    if not isinstance(reference, Tensor) or reference.shape != got.shape:
        return False
    return not bool((unequal(reference.detach(), got) & unequal(want, got)).any())
