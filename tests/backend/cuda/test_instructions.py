"""Every device function of the instruction table compiles, for the targets that have it, to the intended machine
instruction."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from functools import lru_cache
from pathlib import Path

import pytest

from taskmap.backend.cuda.nvrtc import RefusedSourceError, assemble
from taskmap.backend.cuda.products import MADE, is_made, made_family
from taskmap.ir.errors import CodegenError
from taskmap.ir.isa.table import INSTRUCTIONS, Instruction, instruction_named
from taskmap.ir.target import cuda_target
from tests.backend.cuda_calls import unit

TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a")
ON_GPU = [i for i in INSTRUCTIONS if i.targets.kind == "cuda"]


def shown(entry: Instruction) -> bool:
    """Every type of wgmma once, with three n: one rule writes them all, and large ones take long to assemble."""
    sizes = ("m64n8k", "m64n64k16_f16_f32", "m64n256k16_bf16_f32")
    return entry.completes != "wgmma" or any(size in entry.family for size in sizes)


@lru_cache(maxsize=8)
def compiled(isa: str) -> bytes:
    """A CUBIN of all instructions of the target."""
    target = cuda_target(isa)
    return assembled([e for e in ON_GPU if e.targets(target) and shown(e)], isa)


def assembled(entries: list[Instruction], isa: str) -> bytes:
    return assemble(unit(entries), "instructions", (f"--gpu-architecture={isa}", "--std=c++17")).image


@pytest.mark.parametrize("isa", TARGETS)
def test_every_function_compiles(isa: str) -> None:
    assert compiled(isa).startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("name", "isa"),
    [
        ("mma_m16n8k16_f16_f32", "sm_75"),
        ("mma_m16n8k32_i8_i32", "sm_75"),
        ("mma_m16n8k32_e4m3_f32", "sm_80"),
        ("wmma_load_a_m16n16k16_bf16", "sm_75"),
        ("stmatrix_x4", "sm_80"),
        ("cp_async_16", "sm_75"),
        ("mbarrier_init", "sm_75"),
        ("mbarrier_try_wait", "sm_89"),
        ("tma_load_2d", "sm_89"),
        ("cluster_arrive", "sm_89"),
        ("fence_proxy_async", "sm_89"),
        ("warp_reduce_add_i32", "sm_75"),
        ("red_add_f32x4", "sm_89"),
        ("elect", "sm_89"),
        ("wgmma_m64n8k16_f16_f32", "sm_90"),
        ("wgmma_fence", "sm_100a"),
        ("setmaxnreg_inc", "sm_90"),
    ],
)
def test_targets_without_an_instruction_refuse_it(name: str, isa: str) -> None:
    """Both the table and the assembler refuse it."""
    entry = instruction_named(name)
    assert not entry.targets(cuda_target(isa))
    with pytest.raises(RefusedSourceError, match=r"(?s)ptxas|not supported|requires"):
        assembled([entry], isa)


def test_what_is_written_wrongly_is_refused() -> None:
    entry = instruction_named("ldmatrix_x4")
    text = unit([entry])
    assert ".shared.b16" in text
    with pytest.raises(RefusedSourceError):
        assemble(text.replace(".shared.b16", ".shared.b48"), "wrong", ("--gpu-architecture=sm_80", "--std=c++17"))


# ---- What they become


def disassembler() -> str | None:
    installed = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    return str(installed) if installed.exists() else shutil.which("nvdisasm")


BECOMES: dict[str, dict[str, str]] = {
    "sm_75": {
        "mma_m16n8k8_f16_f32": "HMMA.1688.F32",
        "mma_m8n8k16_i8_i32": "IMMA.8816.S8.S8",
        "dp4a_i8_i32": "IDP.4A.S8.S8",
        "ldmatrix_x4": "LDSM.16.M88.4",
        "ldmatrix_x2_trans": "LDSM.16.MT88.2",
        "shuffle_xor": "SHFL.BFLY",
        "exp2_approx": "MUFU.EX2",
        "reciprocal_approx": "MUFU.RCP",
        "load_nc": "LDG.E.U.128.CONSTANT",
    },
    "sm_80": {
        "mma_m16n8k16_f16_f32": "HMMA.16816.F32",
        "mma_m16n8k16_bf16_f32": "HMMA.16816.F32.BF16",
        "mma_m16n8k8_tf32_f32": "HMMA.1688.F32.TF32",
        "mma_m16n8k32_i8_u8_i32": "IMMA.16832.S8.U8",
        "mma_m8n8k4_f64_f64": "DMMA.884",
        "wmma_mma_m16n16k16_f16_f32": "HMMA.16816.F32",
        "cp_async_4": "LDGSTS.E",
        "cp_async_16": "LDGSTS.E.BYPASS.128",
        "cp_async_zfill_16": "LDGSTS.E.BYPASS.128.ZFILL",
        "cp_async_commit": "LDGDEPBAR",
        "cp_async_wait": "DEPBAR.LE",
        "warp_reduce_add_i32": "REDUX.SUM.S32",
        "red_add_f32": "RED.E.ADD.F32",
        "store_cs": "STG.E.EF.128",
        "barrier_sync": "BAR.SYNC",
        "barrier_arrive": "BAR.ARV",
    },
    "sm_89": {"mma_m16n8k32_e4m3_f32": "QMMA.16832.F32.E4M3.E4M3"},
    "sm_90a": {
        "stmatrix_x4": "STSM.16.M88.4",
        "stmatrix_x4_trans": "STSM.16.MT88.4",
        "mbarrier_init": "SYNCS.EXCH.64",
        "mbarrier_try_wait": "SYNCS.PHASECHK.TRANS64.TRYWAIT",
        "mbarrier_arrive_expect_tx": "SYNCS.ARRIVE.TRANS64",
        "cp_async_mbarrier_arrive": "ARRIVES.LDGSTSBAR.64.ARVCNT",
        "tma_load_2d": "UTMALDG.2D",
        "tma_load_multicast_3d": "UTMALDG.3D.MULTICAST",
        "tma_store_5d": "UTMASTG.5D",
        "tma_reduce_add_1d": "UTMAREDG.1D.ADD",
        "tma_commit": "UTMACMDFLUSH",
        "bulk_load": "UBLKCP.S.G",
        "fence_proxy_async": "FENCE.VIEW.ASYNC.S",
        "cluster_arrive": "UCGABAR_ARV",
        "cluster_load": "LD.E",
        "wgmma_m64n64k16_f16_f32": "HGMMA.64x64x16.F32",
        "wgmma_ra_m64n256k16_bf16_f32": "HGMMA.64x256x16.F32.BF16",
        "wgmma_m64n8k8_tf32_f32": "HGMMA.64x8x8.F32.TF32",
        "wgmma_m64n8k32_i8_u8_i32": "IGMMA.64x8x32.S8.U8",
        "wgmma_m64n8k32_e4m3_e5m2_f32": "QGMMA.64x8x32.F32.E4M3.E5M2",
        "wgmma_wait": "WARPGROUP.DEPBAR.LE",
        "elect": "ELECT",
        "red_add_f32x4": "REDG.E.ADD.F32x4",
    },
}


@pytest.mark.skipif(disassembler() is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize("isa", BECOMES)
def test_functions_are_the_instructions_meant(isa: str, tmp_path: Path) -> None:
    path = tmp_path / "instructions.cubin"
    path.write_bytes(compiled(isa))
    command = [str(disassembler()), "--print-code", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, *parts = re.split(r"^\.text\.k_(\w+):", text, flags=re.MULTILINE)
    code = dict(zip(parts[::2], parts[1::2], strict=True))
    for name, wanted in BECOMES[isa].items():
        found = set(re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", code[name]))
        assert any(f"{operation}.".startswith(f"{wanted}.") for operation in found), (name, wanted, found)


# ---- The text itself


def test_the_text_of_every_product_uses_all_its_operands() -> None:
    made = {i.family: i for i in ON_GPU if i.family.startswith("wgmma_")}
    assert len(made) > 300
    for family, entry in made.items():
        for function in made_family(family).split("TM_FN void ")[1:]:
            code, operands = re.findall(r'asm volatile\("(.*?)" : (.*) : "memory"\)', function)[0]
            count = len(re.findall(r'"[+]?[frln]"\(', operands))
            assert {int(n) for n in re.findall(r"%(\d+)", code)} == set(range(count)), entry


def test_a_family_that_does_not_exist() -> None:
    assert all(is_made(family) for family in MADE)
    with pytest.raises(CodegenError, match="no family of device instructions called 'wgmma_m64n7'"):
        made_family("wgmma_m64n7")
