"""Each synchronising entry is necessary: a protocol's kernel without it is reported, or gives a wrong result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.sim import run as sim
from taskmap.backend.sim.run import SimReport
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.errors import SimulationError
from taskmap.ir.isa.table import instruction_named
from tests.backend.sim.instruction_protocols import PROTOCOLS, Protocol
from tests.backend.sim.kernels import clean, kernel, kinds

NOT_HERE: Mapping[str, str] = {
    "prefetch_l1": "a hint",
    "prefetch_l2": "a hint",
    "prefetch_tensor_map": "a hint",
    "grid_wait": "grids run one after the other",
    "grid_launch": "grids run one after the other",
    "wgmma_hold": "a word to the assembler",
    "mbarrier_invalidate": "memory that nothing uses again; test_order.py uses it again",
    "fence_block": "its barrier orders as well; test_order.py has each scope alone",
    "fence_cluster": "its barrier orders as well; test_order.py has each scope alone",
    "fence_gpu": "its barrier orders as well; test_order.py has each scope alone",
    "fence_system": "its barrier orders as well; test_order.py has each scope alone",
    "setmaxnreg_inc": "registers that nobody asks for are never missed; test_registers.py",
    "cluster_rank": "gives a value, without which the kernel is none",
    "cluster_map": "gives a value, without which the kernel is none",
    "cluster_load": "gives a value, without which the kernel is none",
    "wgmma_descriptor": "gives a value, without which the kernel is none",
    "tma_wait_read": "one of two waits is enough at the end; both are told apart below",
    "tma_wait": "one of two waits is enough at the end; both are told apart below",
}
CASES = [(p, name) for p in PROTOCOLS for name in p.entries if name not in NOT_HERE]


def without(text: str, function: str) -> str:
    """The text without the statements that call the function, or that loop until it holds."""
    call = rf"(?<!\w){function}(<[^;(]*>)?\([^;]*\);"
    return re.sub(call, ";", re.sub(rf"while \(!{function}\([^;{{]*\)\) {{}}", ";", text))


@pytest.mark.parametrize(("protocol", "name"), CASES, ids=[f"{p}-{name}" for p, name in CASES])
def test_without_an_entry(store: KernelStore, monkeypatch: pytest.MonkeyPatch, protocol: Protocol, name: str) -> None:
    whole = sim.run

    def run(source: CudaSource, *arguments: Any, **how: Any) -> SimReport:
        text = without(source.text, instruction_named(name).text)
        assert text != source.text
        return whole(replace(source, text=text), *arguments, **how)

    monkeypatch.setattr(sim, "run", run)
    with pytest.raises((SimulationError, AssertionError), match=r"does in the simulator|not equal"):
        protocol.function(store)


STORED = """\
  tm_shared<float> s = tm_shared_at<float>(0, 32);
  const int t = threadIdx.x;
  s[t] = a[t];
  tm_fence_proxy_async();
  tm_warp_sync();
  if (t == 0) {
    tm_bulk_store(b, s, 128);
    tm_tma_commit();
    WAIT
    THEN
    tm_tma_wait<0>();
  }"""


@pytest.mark.parametrize(("then", "enough"), [("s[3] = 1.0f;", {"wait", "wait_read"}), ("b[32] = b[3];", {"wait"})])
@pytest.mark.parametrize("wait", ["", "wait_read", "wait"])
def test_waits_for_stores(store: KernelStore, then: str, enough: set[str], wait: str) -> None:
    """One waits until shared memory has been read, the other until global memory has been written."""
    text = STORED.replace("WAIT", f"tm_tma_{wait}<0>();" if wait else "").replace("THEN", then)
    source = kernel(text, "tm_global<const float> a, tm_global<float> b", threads=32, shared=128)
    a, b = np.arange(32, dtype=np.float32), np.zeros(33, np.float32)
    if wait in enough:
        clean(source, [a, b], store)
        assert b.tolist() == [*a.tolist(), 3 if "b[32]" in then else 0]
    else:
        assert kinds(source, [a, b], store) == {"asynchronous copy"}


def test_those_that_are_not_here_are_entries() -> None:
    assert set(NOT_HERE) <= {name for p in PROTOCOLS for name in p.entries}
