"""The text that is compiled: the unchanged kernel behind the simulator's form of the device code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from taskmap.backend.cuda.source import CudaSource

_HERE = Path(__file__).parent
_DEVICE = _HERE / "device"
_SHARED_WITH_CUDA = _HERE.parent / "cuda" / "device" / "portable.cuh"
_FIRST = ("abi.h", "base.h")
_OWN_INCLUDE = re.compile(r'^#(?:pragma once|include ".*)$\n?', re.MULTILINE)
_WGMMA = re.compile(r"\btm_wgmma_((?:ra_)?m64n(\d+)k(\d+)_(\w+))")
_C_TYPES = {
    "f16": "tm_f16", "bf16": "tm_bf16", "tf32": "float", "f32": "float", "i8": "signed char", "u8": "unsigned char",
    "i32": "int", "e4m3": "tm_e4m3", "e5m2": "tm_e5m2",
}  # fmt: skip
ENGINE_SYMBOL = "tm_sim_run_grid"


def entry_symbol(symbol: str) -> str:
    """The function of a kernel's shared object that the engine calls once for each thread."""
    return f"tm_entry_{symbol}"


def kernel_unit(sources: Sequence[CudaSource], *, checked: bool) -> str:
    """Kernels, of different symbols, as a translation unit that includes no header."""
    products = dict.fromkeys(product for source in sources for product in _wgmma(source.text))
    return "".join((
        f'#define TM_CHECKED {int(checked)}\n#line 1 "prelude"\n{prelude()}\n',
        *products,
        *(
            f'#line 1 "{source.symbol}"\n{source.text}\n'
            f'extern "C" __attribute__((visibility("default"))) void {entry_symbol(source.symbol)}'
            f"(const void *const *a) {{ tm_call({source.symbol}, a); }}\n"
            for source in sources
        ),
    ))  # fmt: skip


@lru_cache(maxsize=1)
def prelude() -> str:
    """The device code on the host: our own files, then the shared one, then the instructions."""
    others = sorted(path for path in _DEVICE.glob("*.h") if path.name not in _FIRST)
    files = [*(_DEVICE / name for name in _FIRST), _SHARED_WITH_CUDA, *others]
    return "\n".join(_without_includes(path) for path in files)


@lru_cache(maxsize=1)
def engine_unit() -> str:
    """The engine as one translation unit; its included files are inlined."""
    seen: set[Path] = set()

    def expand(path: Path) -> str:
        path = path.resolve()
        if path in seen:
            return ""
        seen.add(path)
        lines: list[str] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            included = re.match(r'#include "(.*)"', line)
            if included:
                lines.append(expand(path.parent / included[1]))
            elif line != "#pragma once":
                lines.append(line)
        return "\n".join(lines)

    return expand(_HERE / "engine" / "engine.h") + "\n"


def _wgmma(text: str) -> list[str]:
    """The warpgroup products that a kernel's text names: there are too many shapes to declare them all."""
    found = dict.fromkeys(match.groups() for match in _WGMMA.finditer(text))
    return [_product(*groups) for groups in found]


def _product(name: str, n: str, k: str, types: str) -> str:
    a, *rest = types.split("_")
    b, c = (rest[0], rest[1]) if len(rest) == 2 else (a, rest[0])
    in_registers = name.startswith("ra_")
    constants = ["TransposeB"] if in_registers else ["TransposeA", "TransposeB"]
    if a not in ("f16", "bf16"):
        constants = []
    head = f"template <{', '.join(f'int {c}' for c in constants)}>\n" if constants else ""
    left = f"const {_C_TYPES[a]} *" if in_registers else "long long "
    operands = "a, 0" if in_registers else "0, a"
    turned = ", ".join(t if t in constants else "0" for t in ("TransposeA", "TransposeB"))
    return (
        f"{head}inline void tm_wgmma_{name}({_C_TYPES[c]} *d, {left}a, long long b, int accumulate,"
        f" tm_u32 line = TM_LINE) {{\n"
        f"  static const tm_product product = {{64, {n}, {k}, tm_is_{a}, tm_is_{b}, tm_is_{c}}};\n"
        f"  tm_sim_wgmma(&product, d, {operands}, b, {turned}, accumulate, line);\n}}\n"
    )


def _without_includes(path: Path) -> str:
    return _OWN_INCLUDE.sub("", path.read_text(encoding="utf-8"))
