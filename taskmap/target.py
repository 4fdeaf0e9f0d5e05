"""The target of a compilation: this machine, as the options restrict it."""

from __future__ import annotations

from taskmap.backend.cpu.host import detect_host, parse_isa
from taskmap.ir.errors import UnsupportedError
from taskmap.ir.target import Target, cpu_target
from taskmap.options import Options


def host_target(options: Options, threads: int) -> Target:
    """This machine's CPU as ``options`` want it used, planned for ``threads`` threads where they set none.

    Raises UnsupportedError for an instruction set that this CPU does not have.
    """
    host = detect_host()
    isa = host.isa if options.isa is None else parse_isa(options.isa)
    if not host.supports(isa):
        raise UnsupportedError(
            f"cannot compile for {isa}",
            why=f"this CPU ({host.model}) has no {isa}.",
            hint=f"Leave the option 'isa' out, or use {host.isa!r}.",
        )
    return cpu_target(isa, options.threads or threads, host.l1d, host.l2, host.l3 or host.l2)
