"""Broken compilers and kernel stores lead to one clear error, or to the right result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from taskmap.backend.cpu.toolchain import find_toolchain
from taskmap.ir.errors import CompilerNotFoundError, InvalidOptionError
from taskmap.options import MOST_THREADS, Options
from taskmap.torch_backend import compile_fx


def _answer(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()
    result: torch.Tensor = torch.compile(lambda x: (x * 3.0625).relu().sum(1), backend=compile_fx)(x)
    return result


def test_a_compiler_that_makes_nothing(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cc"
    fake.write_text('#!/bin/sh\ncase "$*" in *-v) echo "gcc version 12.2.0"; echo "Target: x86_64-linux-gnu";; esac\n')
    fake.chmod(0o700)
    monkeypatch.setenv("TASKMAP_CC", str(fake))
    with pytest.raises(Exception, match=r"CompilerFailedError.*\n.*\n.*wrote no shared object"):
        _answer(torch.ones(3, 4))


def test_a_compiler_command_with_an_open_quote() -> None:
    with pytest.raises(CompilerNotFoundError, match="No closing quotation"):
        find_toolchain(environ={"TASKMAP_CC": '"gcc'})
    with pytest.raises(CompilerNotFoundError, match="no C compiler found"):
        find_toolchain(environ={"CC": '"gcc', "PATH": "/nowhere"})


def test_more_threads_than_a_system_has() -> None:
    assert Options(threads=MOST_THREADS).threads == MOST_THREADS
    with pytest.raises(InvalidOptionError, match="at most"):
        Options(threads=10**30)


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"[" * 100_000, b"\xff\xfe"])
def test_every_file_of_the_store_is_damaged(cache_dir: Path, content: bytes) -> None:
    x = torch.randn(5, 7)
    want = (x * 3.0625).relu().sum(1)
    torch.testing.assert_close(_answer(x), want)
    files = [p for p in cache_dir.rglob("*.json") if p.is_file()]
    assert files
    for path in files:
        path.write_bytes(content)
    torch.testing.assert_close(_answer(x), want)
