"""The launch sequence as generated C: one function runs every kernel between two extern calls.

    int taskmap_run_<hash>(char *arena, void *const *io, void *const *constants, void *const *kernels,
                           const long long *dims)

``arena`` is a block of the memory plan's size; ``io`` and ``constants`` hold the addresses of the program's buffers of
those kinds, ``kernels`` the addresses of its kernels, ``dims`` the values of its symbolic sizes. The result is 0, or 1
plus the step whose kernel met an index out of range; the steps after it have not run. The function keeps no state, so
threads may run it at once on arenas and tables of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from taskmap.backend.cpu.team import TEAM, TEAM_DECLARATION
from taskmap.backend.program.memory_plan import MemoryPlan
from taskmap.backend.program.sizes import C_HELPERS, c_size
from taskmap.backend.program.structure import BufferKind, ExternCall, Launch, Program
from taskmap.backend.store.key import LAUNCH, KernelSource

_TABLES = (
    ("char *const ", "arena"),
    ("void *const *const ", "io"),
    ("void *const *const ", "constants"),
    ("void *const *const ", "kernels"),
    ("const long long *const ", "dims"),
)
_PARAMETERS = ", ".join(kind + name for kind, name in _TABLES)


def launch_sources(program: Program, plan: MemoryPlan, *, threads: int | None = None) -> list[KernelSource]:
    """One function for each run of launches between extern calls, in order.

    ``threads``: the number that kernels use; None leaves it to the process's OpenMP runtime.
    """
    position = 0
    sources: list[KernelSource] = []
    for run in program.segments():
        if isinstance(run, ExternCall):
            position += 1
            continue
        sources.append(_segment(program, plan, run, position, threads))
        position += len(run)
    return sources


def _segment(
    program: Program, plan: MemoryPlan, run: Sequence[Launch], position: int, threads: int | None
) -> KernelSource:
    addresses = _addresses(program, plan)
    names = {var: f"d{i}" for i, var in enumerate(program.dims)}
    symbols = {symbol: i for i, symbol in enumerate(program.symbols)}
    lines = [f"  const long long d{i} = dims[{i}];" for i in range(len(program.dims))]
    base = "0LL"
    for i, region in enumerate(plan.regions):
        lines.append(f"  char *const r{i} = arena + {base};")
        lines.append(f"  const long long f{i} = {c_size(region.factor, names)};")
        base = f"(r{i} - arena) + {region.units}LL * f{i}"
    lines.append("  int error = 0;")
    for offset, launch in enumerate(run):
        arguments = [addresses[b] for b in launch.buffers] + [c_size(d, names) for d in launch.dims]
        types = ["void *"] * len(launch.buffers) + ["long long"] * len(launch.dims)
        if launch.needs_error:
            arguments.append("&error")
            types.append("int *")
        call = f"((void (*)({', '.join(types) or 'void'}))kernels[{symbols[launch.symbol]}])({', '.join(arguments)})"
        lines.append(f"  {call};")
        if launch.needs_error:
            lines.append(f"  if (error) {{ call->step = {position + offset + 1}; return; }}")
    body = "\n".join([*lines, "  (void)error;"])
    digest = hashlib.sha256(f"{threads}\n{body}".encode()).hexdigest()[:16]
    symbol = f"{LAUNCH}{digest}"
    text = f"""\
struct call_{digest} {{ {"; ".join(_PARAMETERS.split(", "))}; int step; }};
static void run_{digest}(void *at)
{{
  struct call_{digest} *const call = at;
{chr(10).join(f"  {kind}{name} = call->{name};" for kind, name in _TABLES)}
{body}
}}
int {symbol}({_PARAMETERS})
{{
  struct call_{digest} call = {{{", ".join(name for _, name in _TABLES)}, 0}};
  {TEAM}(run_{digest}, &call, {threads or 0});
  return call.step;
}}
"""
    return KernelSource(symbol, text, (C_HELPERS, TEAM_DECLARATION))


def _addresses(program: Program, plan: MemoryPlan) -> list[str]:
    """The C expression for the address of every buffer."""
    io = {buffer: i for i, buffer in enumerate(program.io)}
    constants = {buffer: i for i, buffer in enumerate(program.constants)}

    def address(buffer: int, kind: BufferKind) -> str:
        if kind is BufferKind.CONSTANT:
            return f"constants[{constants[buffer]}]"
        if kind is not BufferKind.ARENA:
            return f"io[{io[buffer]}]"
        region, offset = plan.places.get(buffer, (0, 0))
        return f"r{region} + {offset}LL * f{region}"

    return [address(i, b.kind) for i, b in enumerate(program.buffers)]
