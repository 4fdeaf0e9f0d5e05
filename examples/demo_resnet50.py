"""Compiles a ResNet-50 with random weights through torch.compile, checks it against eager, and shows what was fused.

python examples/demo_resnet50.py [--threads 2] [--rounds 7] [--seed 0] [--backend taskmap]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the model zoo stands beside this folder

import taskmap
from benchmarks.models import MODELS, relative_error, to_float64
from benchmarks.support.engines import torch_backend
from benchmarks.support.harness import Protocol, interleave

MOST = 4.0
"""The largest error accepted, as a multiple of float32 eager's."""


def main(argv: list[str] | None = None) -> int:
    """The command: 0, or 1 if the compiled model is less accurate than it should be."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    cli.add_argument("--threads", type=int, default=2)
    cli.add_argument("--rounds", type=int, default=7, help="windows that eager and the compiled model get each")
    cli.add_argument("--seed", type=int, default=0, help="of weights and image")
    cli.add_argument("--backend", default="taskmap", help="the backend of torch.compile")
    arguments = cli.parse_args(argv)
    torch.set_num_threads(arguments.threads)

    model, (image,), _ = MODELS["resnet50"].build(arguments.seed)
    print(f"ResNet-50, random weights, one image of 224x224, float32, {arguments.threads} threads, "
          f"torch {torch.__version__}")  # fmt: skip
    with torch.no_grad():
        begin = time.perf_counter()
        compiled = torch.compile(model, backend=torch_backend(arguments.backend))
        found = compiled(image)
        seconds = time.perf_counter() - begin
        print(f"compile    {seconds:.2f} s until the first result (less where the kernel store has the kernels)")

        expected = model(image)
        wide_model, (wide_image,) = to_float64(model, (image,))
        exact = wide_model(wide_image)
        error, eager_error = relative_error((found,), (exact,)), relative_error((expected,), (exact,))
        difference = relative_error((found,), (expected,))
        good = error <= MOST * eager_error
        print(f"result     {'correct' if good else 'WRONG'}: relative error against float64 {error:.1e}, eager's is "
              f"{eager_error:.1e}; against eager {difference:.1e}")  # fmt: skip

        calls = {"eager": lambda: model(image), arguments.backend: lambda: compiled(image)}
        measured = interleave(
            calls, Protocol(arguments.rounds, arguments.seed, accept=0.7, patience=10.0), label="latency"
        )
        times = {name: measured.seconds(name).text(1, " ms", 1e3) for name in calls}
        print(f"latency    eager {times['eager']}, {arguments.backend} {times[arguments.backend]}: "
              f"{measured.speedup(arguments.backend, 'eager').text()} times as fast")  # fmt: skip
        if arguments.backend == "taskmap":
            print(f"\nfused groups\n{taskmap.explain(model, image).table()}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
