"""GPUs as data."""

from __future__ import annotations

import pytest

from taskmap.ir.errors import InvalidOptionError
from taskmap.ir.isa.entry import at_least, only
from taskmap.ir.target import GPUS, cuda_target, gpu_named


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_is_found_however_its_name_is_written(name: str) -> None:
    assert gpu_named(name) is gpu_named(name.lower().replace(" ", "-")) is GPUS[name]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda g: g.name)
def test_the_data_of_a_gpu_is_plausible(gpu) -> None:  # type: ignore[no-untyped-def]
    assert gpu.kind == "cuda"
    assert 0 < gpu.shared_per_block <= gpu.shared_per_sm
    assert gpu.registers_per_sm == 65536
    assert gpu.threads_per_sm in (1024, 1536, 2048)
    assert 1e9 < gpu.clock < 3e9
    assert 3e11 <= gpu.memory_bandwidth <= 1e13
    assert gpu.f16_rate >= 2 * gpu.f32_rate
    assert gpu.l2_rate == 32  # until it is measured: `make gpu` fits it


def test_the_peaks_are_those_of_the_data_sheets() -> None:
    h100 = gpu_named("H100")
    assert h100.cores * h100.clock * h100.f16_rate == pytest.approx(989e12, rel=0.01)
    t4 = gpu_named("T4")
    assert t4.cores * t4.clock * t4.f16_rate == pytest.approx(65e12, rel=0.01)


def test_an_instruction_set_has_the_data_of_a_typical_gpu() -> None:
    assert cuda_target("sm_80").shared_per_block == 163 << 10
    assert cuda_target("sm_87").threads_per_sm == 1536
    assert cuda_target("sm_90a", sms=4).cores == 4
    assert str(cuda_target("sm_90a")) == "cuda:sm_90a"
    assert cuda_target("sm_103a").capability == 103


def test_newer_targets_include_older_ones_without_their_specific_additions() -> None:
    assert at_least("sm_80")(cuda_target("sm_90a"))
    assert not at_least("sm_80")(cuda_target("sm_75"))
    assert only("sm_90a")(cuda_target("sm_90a"))
    assert not only("sm_90a")(cuda_target("sm_100a"))


@pytest.mark.parametrize("isa", ["sm_70", "sm_9", "hopper", "avx2"])
def test_unknown_instruction_sets_are_refused(isa: str) -> None:
    with pytest.raises(InvalidOptionError, match="instruction set"):
        cuda_target(isa)


def test_unknown_gpus_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidOptionError, match="unknown GPU 'H300'") as caught:
        gpu_named("H300")
    assert "H200" in str(caught.value)
