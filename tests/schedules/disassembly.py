"""The machine code of a kernel's loops, by objdump."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from taskmap.backend.cpu.codegen import generate
from taskmap.backend.cpu.compile import TranslationUnit
from taskmap.backend.cpu.host import parse_isa
from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Kernel
from taskmap.ir.target import CpuTarget


def hot_loop(kernel: Kernel, target: CpuTarget, instruction: str, folder: Path) -> list[str]:
    """The lines of the innermost loop with the most of ``instruction``. Skips the test without objdump, or
    if the compiler is older than an instruction."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not here")
    source = generate(lower(kernel, target=target), target.vector_bytes)
    unit, file = TranslationUnit((source,)), folder / "unit.o"
    # The code is read, not run: this CPU may lack the instructions.
    toolchain = replace(find_toolchain(), isa=parse_isa(target.isa))
    command = toolchain.compile_command(str(file), unit.kind)
    done = subprocess.run(command, input=unit.text, text=True, check=False, timeout=250, capture_output=True)
    if "unrecognized" in done.stderr or "no such instruction" in done.stderr:
        pytest.skip("the compiler is older than the instruction")
    assert done.returncode == 0, done.stderr
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(file)], capture_output=True, text=True, timeout=250, check=True
    ).stdout
    return max(innermost_loops(listing), key=lambda lines: sum(instruction in line for line in lines))


def spills(loop: list[str]) -> list[str]:
    """The lines that access vectors on the stack, or call."""
    return [line for line in loop if re.search(r"%rsp|%rbp|\bcall", line) and re.search("[yz]mm", line)]


def innermost_loops(listing: str) -> list[list[str]]:
    """The innermost loops: from the target of a backward jump to the jump, without other jumps between."""
    lines = [line.strip() for line in listing.splitlines() if re.match(r"\s*[0-9a-f]+:\t", line)]
    places = {line.split(":")[0]: number for number, line in enumerate(lines)}
    found = []
    for number, line in enumerate(lines):
        jump = re.search(r"\tj\w+\s+([0-9a-f]+) ", line)
        start = places.get(jump[1], number) if jump else number
        body = lines[start : number + 1]
        if start < number and sum("\tj" in each for each in body) == 1:
            found.append(body)
    return found
