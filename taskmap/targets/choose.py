"""The target of a compilation: this machine, restricted by the options."""

from __future__ import annotations

import os
from dataclasses import replace

from taskmap.backend.cpu.host import detect_host, parse_isa
from taskmap.backend.cuda.driver import DeviceInfo
from taskmap.ir.errors import NoDeviceError, UnsupportedError
from taskmap.ir.features import SIMULATED_ISA, SIMULATED_TILES
from taskmap.ir.target import GPUS, CpuTarget, GpuTarget, cpu_target, cuda_target
from taskmap.options import Options, named_gpu

__all__ = ["host_target"]

DEFAULT_GPU = "sm_80"
"""The GPU that is simulated if the options name none."""

_OWN_FEATURES = (90, 100)  # architectures whose own instructions no later one has: sm_90a, sm_100a


def host_target(options: Options, threads: int) -> CpuTarget:
    """This machine's CPU as restricted by ``options``, planned for ``threads`` threads if they set none.

    Raises UnsupportedError for an instruction set or a feature that this CPU lacks, and InvalidOptionError for an
    unknown one.
    """
    host = detect_host()
    isa = host.isa if options.code_isa is None else parse_isa(options.code_isa)
    if not host.supports(isa):
        raise UnsupportedError(
            f"cannot compile for {isa}",
            why=f"this CPU ({host.model}) does not support {isa}.",
            hint=f"Leave the option 'isa' out, or use {host.isa!r}.",
        )
    asked = SIMULATED_TILES if options.isa == SIMULATED_ISA else options.features or os.environ.get("TASKMAP_FEATURES")
    features = host.chosen_features(options.code_isa, asked or None)
    return cpu_target(isa, options.threads or threads, host.l1d, host.l2, host.l3 or host.l2, features)


def simulated_target(options: Options) -> GpuTarget:
    """The simulated GPU."""
    return named_gpu(options.gpu or DEFAULT_GPU)


def runs_code(isa: str, capability: tuple[int, int]) -> bool:
    """True if a GPU of this compute capability runs machine code for ``isa``: its own, and that of older GPUs of its
    generation; code for a single architecture (sm_90a) runs on no other."""
    major, minor = capability
    wanted = cuda_target(isa).capability
    return wanted == 10 * major + minor if isa[-1] in "af" else wanted // 10 == major and wanted <= 10 * major + minor


def gpu_target(options: Options, device: DeviceInfo) -> GpuTarget:
    """The GPU ``device``, or the older one named by ``options`` whose code it runs, too.

    Raises NoDeviceError for a GPU older than taskmap supports, and for a requested one whose code it does not run.
    """
    major, minor = device.capability
    own = 10 * major + minor
    if options.gpu is not None:
        wanted = named_gpu(options.gpu)
        if not runs_code(wanted.isa, device.capability):
            raise NoDeviceError(
                f"{device.name} does not run code for {wanted.isa}",
                why=f"its compute capability is {major}.{minor}.",
                hint="Leave the option 'gpu' out.",
            )
        return replace(wanted, cores=device.multiprocessors)
    if own < 75:
        raise NoDeviceError(
            f"{device.name} is too old",
            why=f"its compute capability is {major}.{minor}, and taskmap's kernels need 7.5.",
            hint="Use the option target='cpu'.",
        )
    isa = f"sm_{own}{'a' if own in _OWN_FEATURES else ''}"
    known = next((gpu for gpu in GPUS.values() if gpu.name in device.name and gpu.isa == isa), None)
    return replace(known or cuda_target(isa), cores=device.multiprocessors, shared_per_block=device.shared_per_block)
