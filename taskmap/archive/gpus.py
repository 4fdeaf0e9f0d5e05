"""Whether there is a GPU that runs an archive's kernels."""

from __future__ import annotations

from taskmap.backend.cuda.driver import Driver, open_driver
from taskmap.ir.errors import NoDeviceError
from taskmap.targets.choose import runs_code


def find_gpu(isa: str) -> tuple[Driver, int]:
    """The driver, and the number of the first GPU that runs code for ``isa``.

    Raises NoDeviceError, CompilerNotFoundError without the bindings of CUDA, and InvalidOptionError for an ``isa`` that
    is none.
    """
    driver = open_driver()
    devices = [driver.device(i) for i in range(driver.device_count())]
    for device in devices:
        if runs_code(isa, device.capability):
            return driver, device.index
    here = ", ".join(f"{d.name} (compute capability {d.capability[0]}.{d.capability[1]})" for d in devices)
    raise NoDeviceError(f"no GPU here runs code for {isa}", why=f"there is {here or 'none'}.")
