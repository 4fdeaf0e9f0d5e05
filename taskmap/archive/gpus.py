"""Finds a GPU that can run an archive's kernels."""

from __future__ import annotations

from taskmap.backend.cuda.driver import Driver, open_driver
from taskmap.ir.errors import NoDeviceError
from taskmap.targets.choose import runs_code


def find_gpu(isa: str) -> tuple[Driver, int]:
    """The driver, and the number of the first GPU that runs code for ``isa``.

    Raises NoDeviceError, CompilerNotFoundError without CUDA's Python bindings, and InvalidOptionError for an unknown
    ``isa``.
    """
    driver = open_driver()
    devices = [driver.device(i) for i in range(driver.device_count())]
    for device in devices:
        if runs_code(isa, device.capability):
            return driver, device.index
    here = ", ".join(f"{d.name} (compute capability {d.capability[0]}.{d.capability[1]})" for d in devices)
    raise NoDeviceError(f"no GPU here runs code for {isa}", why=f"there is {here or 'none'}.")
