"""Detection of the host CPU, from this machine's /proc and /sys and from synthetic ones."""

import os
from pathlib import Path

import pytest

from taskmap.backend.cpu.host import ISAS, detect_host, parse_isa
from taskmap.backend.cpu.tile_permission import TILE_FEATURES, tiles_are_granted
from taskmap.ir.errors import InvalidOptionError, UnsupportedError

AVX2 = "sse2 avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"


def machine(folder: Path, flags: str, caches: dict[str, tuple[int, str, str]] | None = None) -> tuple[Path, Path]:
    """A /proc and a /sys in which every CPU has `flags` and the caches index -> (level, type, size)."""
    proc, sys = folder / "proc", folder / "sys"
    proc.mkdir()
    block = f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: A CPU: fast\nflags\t\t: {flags}\n\n"
    (proc / "cpuinfo").write_text(block + block.replace("fast", "second"))
    for cpu in os.sched_getaffinity(0):
        topology = sys / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text("0\n")
        (topology / "physical_package_id").write_text("0\n")
        for index, (level, kind, size) in (caches or {}).items():
            cache = sys / f"devices/system/cpu/cpu{cpu}/cache/{index}"
            cache.mkdir(parents=True)
            for name, value in (("level", str(level)), ("type", kind), ("size", size)):
                (cache / name).write_text(value + "\n")
    return proc, sys


@pytest.mark.parametrize(
    ("flags", "isa", "vector_bytes"),
    [
        ("sse2", "generic", 16),
        (AVX2, "avx2", 32),
        ("sse2 avx2 fma", "generic", 16),  # without f16c
        (f"{AVX2} avx512f avx512bw", "avx2", 32),  # a CPU without dq and vl
        (AVX512, "avx512", 64),
    ],
)
def test_isa_follows_the_flags(tmp_path: Path, flags: str, isa: str, vector_bytes: int) -> None:
    host = detect_host(*machine(tmp_path, flags))
    assert host.isa == isa
    assert host.target().vector_bytes == vector_bytes
    assert [host.supports(other) for other in ISAS] == [ISAS.index(other) <= ISAS.index(host.isa) for other in ISAS]


def test_cores_caches_and_names(tmp_path: Path) -> None:
    caches = {
        "index0": (1, "Data", "48K"),
        "index1": (1, "Instruction", "64K"),
        "index2": (2, "Unified", "2M"),
        "index3": (3, "Unified", "36608K"),
    }
    host = detect_host(*machine(tmp_path, AVX512, caches))
    assert (host.l1d, host.l2, host.l3) == (48 << 10, 2 << 20, 36608 << 10)
    assert host.model == "A CPU: fast"
    assert (host.logical_cpus, host.physical_cores) == (len(os.sched_getaffinity(0)), 1)
    target = host.target("avx2")
    assert (str(target), target.vector_bytes, target.l2) == ("cpu:avx2", 32, 2 << 20)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    host = detect_host(tmp_path / "none", tmp_path / "none")
    assert (host.isa, host.model) == ("generic", "unknown")
    assert host.physical_cores == host.logical_cpus >= 1
    assert host.l1d > 0
    assert host.l2 > 0
    assert host.target().l3 > 0  # schedules divide by it


def test_nonsense_in_a_cache_description_is_passed_over(tmp_path: Path) -> None:
    caches = {"index0": (1, "Data", "zero"), "index1": (2, "Unified", "0K"), "index2": (3, "Unified", "")}
    host = detect_host(*machine(tmp_path, AVX2, caches))
    assert (host.l1d, host.l2, host.l3) == (32 << 10, 512 << 10, 0)


def test_this_machine() -> None:
    host = detect_host()
    assert host is detect_host()
    assert 1 <= host.physical_cores <= host.logical_cpus


def test_an_unknown_isa_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="unknown instruction set 'avx9'") as error:
        parse_isa("avx9")
    assert "generic, avx2, avx512" in str(error.value)


def test_features_follow_the_flags(tmp_path: Path) -> None:
    host = detect_host(*machine(tmp_path, f"{AVX512} avx512_bf16 avx512_vnni sse4a"))
    assert host.features == (*AVX512.split()[1:], "avx512_vnni", "avx512_bf16")
    assert host.chosen_features(None, None) == ("avx512_vnni", "avx512_bf16")
    assert host.chosen_features("avx512", None) == ()
    assert host.chosen_features(None, "none") == ()
    assert host.chosen_features("avx512", "avx512_bf16, avx2") == ("avx512_bf16",)
    assert host.chosen_features("avx512", "amx_sim") == ("amx_sim",)
    with pytest.raises(UnsupportedError, match=r"cannot compile for amx_tile, amx_int8\n"):
        host.chosen_features(None, "amx_int8, avx512_bf16, amx_tile")
    with pytest.raises(InvalidOptionError, match="unknown CPU feature 'avx512_fp8'"):
        host.chosen_features(None, "avx512_fp8")


@pytest.mark.parametrize("granted", [True, False])
def test_tiles_count_if_the_system_grants_them(tmp_path: Path, granted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmap.backend.cpu.host.tiles_are_granted", lambda: granted)
    host = detect_host(*machine(tmp_path, f"{AVX512} amx_tile amx_int8 amx_bf16"))
    assert [name for name in host.features if name in TILE_FEATURES] == (list(TILE_FEATURES) if granted else [])


def test_the_grant_is_a_fact_of_the_process() -> None:
    assert tiles_are_granted() is tiles_are_granted()
    assert tiles_are_granted() or not frozenset(TILE_FEATURES) & frozenset(detect_host().features)
