"""An archive with a kernel for Hopper, on two GPUs in turn: `python -m tests.gpu_stand_in.archive`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper

import taskmap
from taskmap.archive import cuda as archive_cuda
from taskmap.archive import gpus as archive_gpus
from taskmap.archive import targets as archive_targets
from taskmap.backend.cuda.driver import Driver
from taskmap.backend.store.objects import KernelStore
from taskmap.targets.choose import simulated_target
from tests.gpu_stand_in.gpu import launched, noted_sources
from tests.gpu_stand_in.library import Stub, folder
from tests.onnx.models import model
from tests.taskmap.targets.test_cuda import execute

HALF = int(onnx.TensorProto.FLOAT16)


def _numbered(gpu: int, isa: str) -> tuple[Driver, int]:
    return archive_gpus.find_gpu(isa)[0], gpu


def main() -> None:
    """Says for each GPU whether what came from it is right."""
    where = folder()
    sources, store = noted_sources(), KernelStore(where)
    # Few multiprocessors: a product that the simulator gets done fills them.
    modules: tuple[Any, Any] = archive_targets, archive_cuda
    modules[0].simulated_target = lambda options: replace(simulated_target(options), cores=1)
    draw = np.random.default_rng(2)
    w = (draw.standard_normal((192, 192)) / 8).astype(np.float16)
    x = draw.standard_normal((192, 192)).astype(np.float16)
    with TemporaryDirectory() as made:
        path = Path(made, "m.onnx")
        product = helper.make_node("MatMul", ["x", "w"], ["y"])
        onnx.save(model([product], {"x": (HALF, [192, 192])}, ["y"], {"w": w}), path)
        archive = path.with_suffix(".taskmap")
        taskmap.compile_onnx(path, archive, options=taskmap.Options(target="cuda", gpu="H200"))
        assert any(source.maps for source in sources.values())
        stub = Stub.loaded(where)
        stub.on_launch(lambda symbol, values: execute(sources, store, launched(symbol, values)))
        loaded = []
        for gpu in (0, 1):
            modules[1].find_gpu = partial(_numbered, gpu)
            loaded.append(taskmap.load(archive))
        want = x.astype(np.float64) @ w.astype(np.float64)
        for gpu in (0, 1, 0):
            (got,) = loaded[gpu](x)
            driver: Driver = archive_gpus.find_gpu("sm_90a")[0]
            assert int(driver.call("cuCtxGetDevice")) == gpu
            error = float(np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want))
            print(f"{'right' if error < 1e-3 else error} on {gpu}")
        assert not stub.failures, stub.failures


if __name__ == "__main__":
    main()
