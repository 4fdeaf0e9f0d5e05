"""CUDA C++ that calls device functions of the instruction table: a kernel for each entry, named after it."""

from __future__ import annotations

from collections.abc import Sequence

from taskmap.backend.cuda.source import prelude
from taskmap.ir.isa.entry import Instruction, Parameter, Place
from taskmap.ir.isa.specs import CachedMoveSpec, MatMulSpec, RegisterHoldSpec
from taskmap.ir.types import DType, bf16, boolean, e4m3, e5m2, f16, f32, f64, i8, i16, i32, i64, tf32, u8

CPP = {
    f16: "tm_f16", bf16: "tm_bf16", tf32: "float", f32: "float", f64: "double", i8: "signed char", u8: "unsigned char",
    i16: "short", i32: "int", i64: "long long", boolean: "bool", e4m3: "tm_e4m3", e5m2: "tm_e5m2",
}  # fmt: skip

LANES = 4
"""Elements of a cached access, and held slots, if a constant gives their number."""

HELPERS = """
template <class T> TM_FN void tm_take(T *x, int n, unsigned char *memory)
{
#pragma unroll
  for (int i = 0; i < n; i++) x[i] = reinterpret_cast<T *>(memory)[threadIdx.x + 128 * i];
}
template <class T> TM_FN void tm_keep(T *x, int n, unsigned char *memory)
{
#pragma unroll
  for (int i = 0; i < n; i++) reinterpret_cast<T *>(memory)[threadIdx.x + 128 * i] = x[i];
}
"""


def unit(entries: Sequence[Instruction]) -> str:
    """A translation unit with kernels k_<name>, which take memory and, if necessary, a tensor map."""
    families = dict.fromkeys(("base", "portable", *(e.family for e in entries)))
    if any(e.completes == "wgmma" for e in entries):
        families["wgmma"] = None
    return "\n".join([prelude(tuple(families)), HELPERS, *map(_kernel, entries)])


def _kernel(entry: Instruction) -> str:
    has_map = any(p.place is Place.TENSOR_MAP for p in entry.parameters)
    map_ = ", const __grid_constant__ tm_tensor_map map" if has_map else ""
    head = f'extern "C" __global__ void __launch_bounds__(128) k_{entry.name}(unsigned char *memory{map_})'
    return f"{head}\n{{\n  {_calls(entry)}\n}}\n"


def _calls(entry: Instruction) -> str:
    """A block that calls the function, for the first and for the last choice of its constants."""
    given = [(p, f"x{n}") for n, p in enumerate(entry.parameters) if p.place is not Place.CONSTANT]
    before = " ".join(_declared(entry, p, at) for p, at in given)
    after = " ".join(f"tm_keep({at}, {p.count or LANES}, memory);" for p, at in given if _is_written(p))
    blocks = []
    for end in (0, -1):
        constants = [str(_choices(entry, p)[end]) for p in entry.parameters if p.place is Place.CONSTANT]
        template = f"<{', '.join(constants)}>" if constants else ""
        call = f"{entry.text}{template}({', '.join('map' if p.place is Place.TENSOR_MAP else at for p, at in given)})"
        done = f"auto y = {call}; *reinterpret_cast<decltype(y) *>(memory) = y;" if entry.result else f"{call};"
        if entry.completes == "wgmma":
            done = f"tm_wgmma_fence(); {done} tm_wgmma_commit(); tm_wgmma_wait<0>();"
        blocks.append(f"{{ {before} {done} {after} }}")
    return "\n  ".join(dict.fromkeys(blocks))


def _choices(entry: Instruction, p: Parameter) -> Sequence[int]:
    if isinstance(entry.spec, CachedMoveSpec | RegisterHoldSpec):
        return (LANES,)
    if isinstance(entry.spec, MatMulSpec) and entry.completes == "wgmma":
        return p.choices[:1]  # one product suffices: nothing else depends on them
    return p.choices or (0, 7)


def _declared(entry: Instruction, p: Parameter, at: str) -> str:
    cpp = CPP[_dtype(p)]
    if p.place is Place.REGISTERS:
        slots = p.count or LANES
        return f"__align__(16) {cpp} {at}[{slots}]; tm_take({at}, {slots}, memory);"
    if p.place is Place.SHARED:
        return f"{cpp} *{at} = tm_shared_at<{cpp}>({1024 * int(at[1:])});"
    if p.place in (Place.GLOBAL, Place.MEMORY):
        return f"{cpp} *{at} = reinterpret_cast<{cpp} *>(memory) + {512 * int(at[1:])};"
    if p.place is Place.TENSOR_MAP:
        return ""
    lanes = LANES if isinstance(entry.spec, CachedMoveSpec) else p.count
    if lanes > 1:
        return f"tm_vec<{cpp}, {lanes}> {at}; tm_take({at}.lane, {lanes}, memory);"
    return f"{cpp} {at}; tm_take(&{at}, 1, memory);"


def _is_written(p: Parameter) -> bool:
    return p.place is Place.REGISTERS and "w" in p.effect


def _dtype(p: Parameter) -> DType:
    """The element type with which a parameter is tested: f32 if any type will do."""
    return f32 if not p.dtypes or f32 in p.dtypes else f16 if f16 in p.dtypes else p.dtypes[0]
