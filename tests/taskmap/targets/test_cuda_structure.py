"""The assembly of scheduled kernels: tensor instructions if there are any, 16-byte accesses, no spills."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.gpu.sass import count, instructions, sass
from taskmap.backend.counters import Counters
from taskmap.backend.cuda.compile import SUFFIX, CudaBinary, compile_cuda
from taskmap.backend.cuda.source import CudaSource
from taskmap.backend.cuda.toolchain import find_cuda_toolchain
from taskmap.backend.store.objects import KernelStore
from taskmap.compile.session import new_session
from taskmap.errors import CompilerFailedError
from taskmap.options import Options
from taskmap.torch_backend import compile_captured

pytest.importorskip("nvidia")
TARGETS = ("sm_80", "sm_90a")


def kernels(model: nn.Module, *args: torch.Tensor, gpu: str) -> list[tuple[CudaBinary, Counter[str]]]:
    """The kernels of a model, with the number of occurrences of each instruction."""
    session = new_session(Options(target="cuda-sim", gpu=gpu))
    with torch.no_grad():
        torch.compile(model.eval(), backend=partial(compile_captured, session=session))(*args)
    sources = [k.source for k in session.kernels.values() if isinstance(k.source, CudaSource)]
    made = compile_cuda(sources, find_cuda_toolchain(gpu), KernelStore(suffix=SUFFIX), Counters())
    return [(binary, instructions(sass(binary.image))) for binary in made.values()]


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("gpu", TARGETS)
def test_products_of_f16_use_tensor_instructions(gpu: str) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU()).half()
    ((binary, found),) = kernels(model, torch.randn(256, 256).half(), gpu=gpu)
    assert binary.resources.spills == 0
    assert count(found, "HMMA") + count(found, "HGMMA") > 0
    narrow = sum(n for name, n in found.items() if name.startswith("LDGSTS") and "128" not in name.split("."))
    assert narrow == 0
    assert count(found, "LDGSTS", "128") + count(found, "LDG", "128") + count(found, "UTMALDG") > 0


def images(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """Convolutions with channels-last images between them, and weights in another layout."""
    model = nn.Sequential(
        nn.Conv2d(16, 64, 1), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU(), nn.Conv2d(64, 16, 3, stride=2),
    )  # fmt: skip
    return model.to(dtype), torch.randn(2, 16, 17, 17).to(dtype).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("gpu", TARGETS)
def test_convolutions_load_16_bytes_of_images_and_of_weights(gpu: str) -> None:
    model, x = images(torch.float16)
    made = kernels(model, x, gpu=gpu)
    of_images = [(b, found) for b, found in made if "pack" not in b.source.symbol]
    assert len(of_images) == 4
    assert sum(count(found, "HMMA") + count(found, "HGMMA") > 0 for _, found in of_images) == 3
    for binary, found in of_images:
        every = [(name.split("."), n) for name, n in found.items()]
        loads = sum(n for words, n in every if words[0] in ("LDG", "LDGSTS") and "128" in words)
        assert loads > 0, binary.source.symbol
        assert binary.resources.spills == 0
    ((_, alone),) = [(b, found) for b, found in of_images if "cuda.pointwise" in b.source.text]
    assert count(alone, "LDG") == count(alone, "LDG", "128") > 0
    assert count(alone, "STG") == count(alone, "STG", "128") > 0


@pytest.mark.parametrize("gpu", TARGETS)
def test_three_channels_are_loaded_as_16_bytes(gpu: str) -> None:
    """The first layer of a network: a copy of its image has 8 channels."""
    model = nn.Conv2d(3, 64, 7, stride=2, padding=3).half()
    made = kernels(model, torch.randn(1, 3, 30, 30).half(), gpu=gpu)
    (found,) = (found for _, found in made if count(found, "HMMA") + count(found, "HGMMA") > 0)
    assert count(found, "LDGSTS", "128") > 0
    assert count(found, "LDG", "U16") == 0
    of_image = [(b, found) for b, found in made if "pack" not in b.source.symbol]
    (copied,) = (found for b, found in of_image if "fill_channels" in b.source.symbol)
    assert count(copied, "STG") == count(copied, "STG", "128") == 1


@pytest.mark.parametrize("gpu", TARGETS)
def test_attention_uses_tensor_instructions(gpu: str) -> None:
    q, k, v = (torch.randn(1, 2, 128, 64).half() for _ in range(3))
    ((binary, found),) = kernels(Attention(), q, k, v, gpu=gpu)
    assert binary.resources.spills == 0
    assert count(found, "HMMA") + count(found, "HGMMA") > 0


@pytest.mark.parametrize("gpu", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_element_wise_kernels_move_16_bytes(gpu: str, dtype: torch.dtype) -> None:
    ((binary, found),) = kernels(nn.GELU(), torch.randn(8192).to(dtype), gpu=gpu)
    assert binary.resources.spills == 0
    assert count(found, "LDG") == count(found, "LDG", "128") > 0
    assert count(found, "STG") == count(found, "STG", "128") > 0


@pytest.mark.parametrize("model", [nn.Softmax(-1), nn.LayerNorm(1024)])
def test_rows_move_16_bytes_and_stay_in_registers(model: nn.Module) -> None:
    ((binary, found),) = kernels(model, torch.randn(64, 1024), gpu="sm_80")
    assert binary.resources.spills == 0
    assert count(found, "STG") == count(found, "STG", "128") > 0
    assert count(found, "LDL") == count(found, "STL") == 0


@pytest.mark.parametrize("gpu", TARGETS)
def test_nothing_spills_in_a_network(gpu: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, groups=16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10), nn.LogSoftmax(-1),
    )  # fmt: skip
    for binary, _ in kernels(model, torch.randn(2, 3, 16, 16), gpu=gpu):
        assert binary.resources.spills == 0
        assert binary.resources.warnings == ()


def test_reading_assembly() -> None:
    text = """
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/               @P1 EXIT ;
.L_x_0:
        /*0030*/                   LDG.E.128 R8, desc[UR4][R2.64] ;
    """
    found = instructions(text)
    assert found == {"LDC": 1, "LDG.E.128.CONSTANT": 1, "EXIT": 1, "LDG.E.128": 1}
    assert (count(found, "LDG", "128"), count(found, "LDG", "64"), count(found)) == (2, 0, 4)


def test_what_is_no_kernel() -> None:
    with pytest.raises(CompilerFailedError, match="nvdisasm refused"):
        sass(b"not a cubin")
