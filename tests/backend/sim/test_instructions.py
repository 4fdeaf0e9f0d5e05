"""Every entry of the instruction table agrees, in the simulator, with its spec and its owners."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from taskmap.backend.sim.run import run
from taskmap.backend.sim.unit import prelude
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.interp.instructions import execute
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import AtomicSpec, FragmentMoveSpec, MatMulSpec, MatrixMoveSpec
from taskmap.ir.types import e4m3, e5m2, f64, tf32
from tests.backend.sim.fragment_products import FRAGMENT_PRODUCTS, FragmentProduct
from tests.backend.sim.instruction_checks import CHECKS, ON_GPU, Check, check_atomic, places_of_many
from tests.backend.sim.instruction_protocols import PROTOCOLS, Protocol
from tests.backend.sim.instruction_runs import C_TYPES, run_product
from tests.backend.sim.kernels import kernel

CASES = [(check, entry, variant) for check in CHECKS for entry, variant in check.cases(every=False)]


def named(check: Check, entry: Instruction, variant: tuple[Any, ...]) -> str:
    return "-".join([check.name, entry.name, *map(str, variant)])


@pytest.mark.parametrize(("check", "entry", "variant"), CASES, ids=[named(*case) for case in CASES])
def test_an_entry(store: KernelStore, check: Check, entry: Instruction, variant: tuple[Any, ...]) -> None:
    check.function(store, entry, *variant)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_a_protocol(store: KernelStore, protocol: Protocol) -> None:
    protocol.check(store)


@pytest.mark.parametrize("product", [p for p in FRAGMENT_PRODUCTS if "f16_f32" in str(p) or "u8" in str(p)], ids=str)
def test_fragments_are_loaded_multiplied_and_stored(store: KernelStore, product: FragmentProduct) -> None:
    product.check(store)


def test_every_entry_is_checked() -> None:
    checked = {entry.name for check in CHECKS for entry in check.entries}
    checked |= {name for protocol in PROTOCOLS for name in protocol.entries}
    assert {entry.name for entry in ON_GPU} == checked


@pytest.mark.parametrize("entry", [i for i in ON_GPU if isinstance(i.spec, AtomicSpec)], ids=lambda i: i.name)
def test_atomics_take_threads_in_order(store: KernelStore, entry: Instruction) -> None:
    """Ascending, the order of seed 0; run in the simulator only, because a GPU takes any order."""
    check_atomic(store, entry, places_of_many(), exact=True)


def test_the_simulator_knows_every_entry() -> None:
    """Those that order, too; macros make some of the names."""
    written = prelude()
    made = {
        e.text for e in ON_GPU if not isinstance(e.spec, MatMulSpec | MatrixMoveSpec | FragmentMoveSpec | AtomicSpec)
    }
    stems = re.compile(r"tm_(tma_|cp_async_|load_|store_|shuffle_|warp_reduce_).*")
    missing = [name for name in made if not stems.fullmatch(name) and not re.search(rf"\b{name}\(", written)]
    assert not missing


def test_tf32_ignores_the_bits_below_its_mantissa(store: KernelStore) -> None:
    assert tf32.bytes == 4
    body = """\
  const int t = threadIdx.x;
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f}, a[4], b[2];
  for (int i = 0; i < 4; i++) a[i] = x[0];
  for (int i = 0; i < 2; i++) b[i] = 1.0f;
  tm_mma_m16n8k8_tf32_f32(c, a, b);
  for (int i = 0; i < 4; i++) y[t * 4 + i] = c[i];"""
    source = kernel(body, "tm_global<const float> x, tm_global<float> y", threads=32)
    y = np.zeros(128, np.float32)
    run(source, [np.array([1 + 2.0**-10 + 2.0**-11], np.float32), y], store=store)
    assert (y == 8 * (1 + 2.0**-10)).all()


def test_eight_bit_floats(store: KernelStore) -> None:
    """All codes of both kinds against their definitions: subnormal numbers, infinities, NaN."""
    for of, largest in ((e4m3, 448.0), (e5m2, 57344.0)):
        kind = C_TYPES[of.name]
        body = f"""\
  const int t = threadIdx.x;
  float c[4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
  alignas(4) {kind} a[16], b[8];
  for (int i = 0; i < 16; i++) a[i] = codes[blockIdx.x];
  for (int i = 0; i < 8; i++) b[i].bits = 0;
  if (t % 4 == 0) b[0] = codes[256];
  tm_mma_m16n8k32_{of.name}_f32(c, a, b);
  if (t == 0) y[blockIdx.x] = c[0];"""
        source = kernel(body, f"tm_global<const {kind}> codes, tm_global<float> y", threads=32, grid=(256,))
        one = {"e4m3": 0x38, "e5m2": 0x3C}[of.name]
        codes = np.array([*range(256), one], np.uint8)
        y = np.zeros(256, np.float32)
        run(source, [codes, y], store=store)
        finite = y[np.isfinite(y)]
        assert finite.max() == largest
        assert y[1] == {"e4m3": 2.0**-9, "e5m2": 2.0**-16}[of.name]
        assert np.isnan(y[127])
        assert (np.sort(y[:126]) == y[:126])[: {"e4m3": 126, "e5m2": 124}[of.name]].all()


def test_double_precision_products_are_exact_in_double(store: KernelStore) -> None:
    entry = next(i for i in ON_GPU if i.name == "mma_m8n8k4_f64_f64")
    assert entry.spec.c == f64  # type: ignore[union-attr]
    c, a, b, after = run_product(entry, store)
    np.testing.assert_array_equal(after, execute(entry, c, a, b))
