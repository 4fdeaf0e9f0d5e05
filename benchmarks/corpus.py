"""The text of every kernel, to compare before and after a change that should leave kernels as they are.

Writes each stage of the models for the CPU (graph, plan, kernels, program) and every subject of `tests/cuda_proof` at
the corners of its space for the GPU. Two folders are compared by `diff -r`; the command does it where both are named.

python -m benchmarks.corpus FOLDER [--isa avx512 avx2] [--models NAME ...] [--no-gpu] [--before FOLDER]
"""

from __future__ import annotations

import argparse
import filecmp
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.models import MODELS
from tests.cuda_proof.proving import corners
from tests.cuda_proof.subjects import subjects


def write_model(name: str, isa: str, folder: Path) -> None:
    """Compiles and runs a model once for the vector instructions ``isa``; its stages land in ``folder``."""
    module, args, kwargs = MODELS[name].build(0, False)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="taskmap", options={"isa": isa, "dump_dir": str(folder)})
    with torch.no_grad():
        compiled(*args, **kwargs)


def write_gpu(folder: Path) -> None:
    """Writes the CUDA source of every subject's corners, one file per kernel and architecture."""
    for subject in tqdm(list(subjects()), desc="GPU subjects", disable=None):
        for corner in corners(subject):
            for architecture, source in corner.sources.items():
                path = folder / re.sub(r"[^\w.,=+-]", "_", str(subject)) / re.sub(r"[^\w.,=+-]", "_", corner.config)
                path.mkdir(parents=True, exist_ok=True)
                number = sum(1 for _ in path.glob(f"{architecture}*"))
                (path / f"{architecture}{number or ''}.cu").write_text(source.text, encoding="utf-8")


def differences(before: Path, after: Path) -> Iterator[str]:
    """The files that only one of the folders holds, or that differ. PyTorch's own text names the checkout: left out."""
    names = [
        {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name != "00_fx.txt"}
        for root in (before, after)
    ]
    yield from (f"only before: {name}" for name in sorted(names[0] - names[1]))
    yield from (f"only after: {name}" for name in sorted(names[1] - names[0]))
    for name in sorted(names[0] & names[1]):
        if not filecmp.cmp(before / name, after / name, shallow=False):
            yield f"differs: {name}"


def main(argv: list[str] | None = None) -> int:
    """The command; 1 if the folders differ."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("folder", type=Path, help="a new folder that receives the text")
    cli.add_argument("--isa", nargs="*", default=["avx512", "avx2"], help="vector instructions of the CPU")
    cli.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    cli.add_argument("--no-gpu", action="store_true", help="leave out the subjects of the GPU's templates")
    cli.add_argument("--before", type=Path, help="an earlier folder to compare with")
    arguments = cli.parse_args(argv)
    if arguments.folder.exists():
        cli.error(f"{arguments.folder} exists: name a new folder")
    for isa in arguments.isa:
        for name in tqdm(arguments.models, desc=isa, disable=None):
            write_model(name, isa, arguments.folder / isa / name)
    if not arguments.no_gpu:
        write_gpu(arguments.folder / "gpu")
    if arguments.before is None:
        return 0
    found = list(differences(arguments.before, arguments.folder))
    print("\n".join(found) or "no difference")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
