"""The errors of users who fork, have an old driver, or run out of GPU memory: `STUB_CASE=fork python -m
tests.gpu_stand_in.errors`."""

from __future__ import annotations

import os
from collections.abc import Callable

from taskmap.archive.gpus import find_gpu
from taskmap.backend.cuda.driver import Driver, open_driver
from taskmap.backend.cuda.memory import DeviceMemory
from taskmap.ir.errors import DeviceError, DeviceMemoryError, NoDeviceError
from tests.gpu_stand_in.library import Stub, folder


def fork() -> bool:
    """A process that was forked from one that has used the GPU gets the same clear error from every call; its parent
    goes on."""
    driver = open_driver()
    driver.ensure_context(0)
    memory = DeviceMemory(driver, 0)
    calls = (
        lambda: driver.ensure_context(0), driver.device_count, lambda: find_gpu("sm_90a"), lambda: memory.allocate(256),
        lambda: driver.synchronize(0, "a kernel"),
    )  # fmt: skip
    child = os.fork()
    if child == 0:
        os._exit(sum(not _refuses_a_fork(call) for call in calls))
    right = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    driver.ensure_context(0)
    return right


def _refuses_a_fork(call: Callable[[], object]) -> bool:
    try:
        call()
    except DeviceError as error:
        return "in a forked process" in str(error) and "'spawn'" in str(error)
    return False


def version() -> bool:
    """A driver of CUDA 12 loads no machine code of CUDA 13."""
    try:
        open_driver()
    except NoDeviceError as error:
        return "driver is too old" in str(error)
    return False


def memory() -> bool:
    """A GPU without memory for one block has it again once others are given back."""
    driver: Driver = open_driver()
    driver.ensure_context(0)
    taken = DeviceMemory(driver, 0)
    first = taken.allocate(40_000)
    try:
        taken.allocate(40_000)
        return False
    except DeviceMemoryError as error:
        if "smaller batch" not in str(error):
            return False
    del first
    address, block = taken.allocate(50_000)  # the free block is given to the driver first
    return address != 0 and block is not None


def main() -> None:
    """Prints whether the case is right."""
    Stub.loaded(folder())
    case = os.environ["STUB_CASE"]
    print(f"{case}: {'right' if {'fork': fork, 'version': version, 'memory': memory}[case]() else 'wrong'}")


if __name__ == "__main__":
    main()
