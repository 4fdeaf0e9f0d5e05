"""Kernels for the host: several form one translation unit, and each is found and named by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taskmap.backend.counters import Counters
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim.building import build_kernel, build_kernels, engine
from taskmap.backend.sim.run import run
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import CompilerFailedError
from tests.backend.sim.kernels import kernel


def named(name: str, body: str) -> CudaSource:
    """A kernel on one array of 32 floats."""
    source = kernel(
        f"  // the second line\n  const int thread = threadIdx.x;\n  {body}", "tm_global<float> p", threads=32
    )
    return replace(source, symbol=name, text=source.text.replace("tm_k", name))


@pytest.fixture
def own(store: KernelStore, tmp_path: Path) -> KernelStore:
    """An empty store whose engine exists already."""
    engine(store)
    return KernelStore(tmp_path)


def test_kernels_of_one_unit_are_found_one_by_one(own: KernelStore) -> None:
    sources = [named(f"tm_plus_{n}", f"p[thread] = p[thread] + {n};") for n in (1, 2, 3)]
    counters = Counters()
    build_kernels(sources[:2], own, counters=counters)
    counts = counters.snapshot()
    assert (counts.kernels_compiled, counts.kernels_found, counts.units_compiled) == (2, 0, 1)
    later = KernelStore(own.path)
    kernels = build_kernels(sources, later, counters=counters)
    counts = counters.snapshot()
    assert (counts.kernels_compiled, counts.kernels_found, counts.units_compiled) == (3, 2, 2)
    assert kernels[0].path == kernels[1].path != kernels[2].path
    for n, source in enumerate(sources, 1):
        x = np.zeros(32, np.float32)
        run(source, [x], store=later)
        assert (x == n).all()


def test_problems_name_the_lines_of_their_kernel(store: KernelStore) -> None:
    sources = [named("tm_right", "p[thread] = 1;"), named("tm_wrong", "p[thread + 1] = 1;")]
    build_kernels(sources, store)
    x = np.zeros(32, np.float32)
    assert not run(sources[0], [x], store=store).problems
    (problem,) = run(sources[1], [x], store=store, raises=False).problems
    assert problem.kind == "out of bounds"
    assert problem.place.code == "p[thread + 1] = 1;"


def test_one_that_is_refused_is_named(own: KernelStore) -> None:
    good, bad = named("tm_good", "p[thread] = 1;"), named("tm_bad", "p[thread] = nobody;")
    with pytest.raises(CompilerFailedError, match="tm_bad") as refused:
        build_kernels([good, bad], own)
    assert "tm_good" not in str(refused.value)
    counters = Counters()
    build_kernel(good, KernelStore(own.path), counters=counters)
    assert counters.snapshot().kernels_found == 1
