"""The target of a command: --target and --gpu."""

from __future__ import annotations

import argparse

from taskmap.ir.errors import InputError, InvalidOptionError
from taskmap.ir.target import GPUS
from taskmap.options import TARGETS, named_gpu

GPU_HELP = "the GPU's name or instruction set (this machine's GPU; for cuda-sim sm_80)"


def target_or_gpu(text: str) -> str:
    """A target, or a GPU's name or instruction set, for argparse."""
    if text in TARGETS:
        return text
    try:
        named_gpu(text)
    except InvalidOptionError as error:
        known = f"{', '.join(TARGETS)}, an instruction set such as sm_90a, or {', '.join(GPUS)}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a target: choose from {known}") from error
    return text


def chosen(target: str | None, gpu: str | None) -> tuple[str, str | None]:
    """The options ``target`` and ``gpu`` from the command line; "sm_90a" as a target means "cuda" on that GPU.

    Raises InputError for a GPU with a target other than a GPU's, and for two GPUs.
    """
    if target is not None and target not in TARGETS:
        if gpu is not None:
            raise InputError(f"--target {target} names a GPU, and so does --gpu {gpu}")
        return "cuda", target
    if gpu is not None and target not in ("cuda", "cuda-sim"):
        raise InputError("--gpu is for the targets cuda and cuda-sim", hint="Add --target cuda.")
    return target or "cpu", gpu
