"""The assembly of every GPU template at sizes of real models: the instructions that do its work, and that registers
suffice. tests/taskmap/targets/test_cuda_structure.py checks whole models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pytest

from benchmarks.gpu.sass import can_disassemble, count, instructions, listing, loop_with, sass
from taskmap.backend.cuda.codegen import generate
from taskmap.graph.nodes import Node
from taskmap.graph.ops import activations, arithmetic, gather, pooling, softmax, views
from taskmap.graph.ops.attention import attention
from taskmap.graph.ops.convolution import add_channel_bias, convolution
from taskmap.graph.ops.pointwise import pointwise
from taskmap.ir.construct import call
from taskmap.ir.errors import KernelResourceError
from taskmap.ir.lower.pipeline import lower
from taskmap.ir.nodes import Dim, Var
from taskmap.ir.target import cuda_target
from taskmap.ir.types import DType, bf16, f16, f32, i8, i64
from taskmap.schedules import schedule
from taskmap.schedules.cuda.hopper.matmul_config import HopperConfig
from taskmap.schedules.cuda.matmul.config import MatmulConfig
from taskmap.schedules.cuda.matmul.problem_view import find_product
from taskmap.schedules.cuda.select_matmul import most_registers, registers, schedule_config, why_not
from tests.cuda_proof.proving import Proof
from tests.cuda_proof.subjects import beside, convolution_subjects, integers, product_subjects
from tests.schedules.cuda_running import cuda, source_of
from tests.schedules.graph_tasks import Strides, channels_last, fused, layer_norm, matrix_product, tensor

pytestmark = pytest.mark.skipif(not can_disassemble(), reason="nvdisasm is not installed: pip install taskmap[test]")


@dataclass(frozen=True, slots=True)
class Assembly:
    """The instructions of a kernel, by name, the note of its schedule, and all of its text."""

    note: str
    found: Counter[str]
    text: str = ""

    def has(self, *words: str) -> int:
        """The number of instructions with these words in their names."""
        return count(self.found, *words)

    def global_loads(self, *, narrow: bool) -> int:
        """Loads of memory by threads of 16 bytes, or (``narrow``) of fewer."""
        every = [(name, n) for name, n in self.found.items() if name.split(".")[0] in ("LDG", "LDGSTS")]
        return sum(n for name, n in every if ("128" in name.split(".")) != narrow)


def assembly(
    outputs: Sequence[Node],
    isa: str,
    anchor: Node | None = None,
    last: Sequence[Node] = (),
    strides: Mapping[Node, Strides] | None = None,
) -> Assembly:
    """A task's kernel on a whole GPU; images ``last`` have their channels last. Nothing is spilled."""
    task = fused(outputs, anchor, {n: channels_last(*n.shape) for n in last} | dict(strides or {}))
    target = cuda_target(isa)
    kernel = schedule(task, target)
    proof = Proof(1)
    binary = proof.compile(generate(lower(kernel, target=target), target), isa)
    proof.close()
    text = sass(binary.image)
    found = instructions(text)
    assert binary.resources.spills == 0
    assert binary.resources.stack == 0
    assert count(found, "LDL") == count(found, "STL") == 0
    return Assembly(kernel.note, found, text)


def multiplies_on_tensor_cores(a: Assembly, isa: str) -> bool:
    """By warpgroups from shared memory on Hopper, otherwise by warps, whose operands ldmatrix loads."""
    return a.has("HGMMA") > 0 if isa == "sm_90a" else a.has("HMMA") > 0 and a.has("LDSM") > 0


def copied_by_engine(a: Assembly) -> int:
    """Copies by TMA."""
    return sum(n for name, n in a.found.items() if name.startswith("UTMALDG"))


@lru_cache
def of_product(form: str, dtype: DType, isa: str) -> Assembly:
    return assembly([matrix_product(form, 1024, 1024, 1024, dtype)], isa)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("form", ["plain", "right", "left"])
def test_products_on_ampere(form: str, dtype: DType) -> None:
    a = of_product(form, dtype, "sm_80")
    assert a.has("HMMA") > 0
    assert a.has("LDSM") > 0
    turned = sum(n for name, n in a.found.items() if name.startswith("LDSM") and ".MT" in name)
    assert (turned > 0) == (form != "right")  # a factor that is not contiguous along k is turned on the way
    assert a.has("LDGSTS", "128") > 0
    assert a.global_loads(narrow=True) == 0
    assert a.has("FFMA") == 0


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("form", ["plain", "right", "left"])
def test_products_on_hopper(form: str, dtype: DType) -> None:
    a = of_product(form, dtype, "sm_90a")
    assert "cuda.hopper" in a.note
    assert a.has("HGMMA") > 0
    assert copied_by_engine(a) > 0
    assert sum(n for name, n in a.found.items() if name.startswith("SYNCS")) > 0
    assert a.global_loads(narrow=True) + a.global_loads(narrow=False) == 0


@pytest.mark.parametrize("size", [1024, 4096, 8192])
def test_addresses_of_products_on_hopper_are_those_of_a_warp(size: int) -> None:
    """An address that depends on a thread's number would be moved to the registers of a warp in every k-step."""
    a = assembly([matrix_product("plain", size, size, size, f16)], "sm_90a")
    step = loop_with(a.text, "HGMMA")
    assert len(step.places("HGMMA")) == 4
    assert not step.places("R2UR")
    assert len(step.code) <= 76


def test_results_that_the_copy_engine_clips_are_kept_without_asking() -> None:
    """Sizes that no tile divides; with a bias, memory would be read beyond its end, so the epilogue is predicated."""
    product = matrix_product("plain", 4104, 4104, 1024, f16)
    a = assembly([product], "sm_90a")
    biased = assembly([arithmetic.add(product, tensor(4104, dtype=f16))], "sm_90a")
    assert "boxed" in a.note
    assert "boxed" in biased.note
    asked = [[t for t in listing(x.text) if t.startswith("@") and " STS" in t] for x in (a, biased)]
    assert not asked[0]
    assert asked[1]
    assert loop_with(a.text, "UTMASTG").places("ISETP") == []


@pytest.mark.parametrize(("isa", "name"), [("sm_80", "IMMA"), ("sm_90a", "IGMMA")])
def test_products_of_bytes(isa: str, name: str) -> None:
    a = assembly([integers(1024, 1024, 1024, i8, i8)], isa)
    assert sum(n for found, n in a.found.items() if found.startswith(name)) > 0
    assert a.has("LDSM") > 0 or isa == "sm_90a"


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
def test_products_of_single_precision(isa: str) -> None:
    a = of_product("plain", f32, isa)
    assert a.has("FFMA") > 0
    assert a.has("LDS", "128") > 0
    assert a.global_loads(narrow=False) > a.global_loads(narrow=True) == 0
    assert a.has("STG") == a.has("STG", "128") > 0


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
def test_images_with_channels_last(isa: str) -> None:
    x, w = tensor(8, 64, 56, 56, dtype=f16), tensor(64, 64, 3, 3, dtype=f16)
    y = convolution(x, w, [1], [1], [1])
    a = assembly([y], isa, y, (x, w, y))
    assert multiplies_on_tensor_cores(a, isa)
    assert a.has("LDGSTS", "128") > 0
    assert a.global_loads(narrow=True) == 0


@pytest.mark.parametrize(("channels", "stride", "dilation"), [(64, 1, 1), (128, 2, 1), (96, 1, 2)])
def test_windows_on_hopper_cost_the_producer_ten_instructions_a_chunk(
    channels: int, stride: int, dilation: int
) -> None:
    """Rows are divided into image, line and column once, in front of the loop over k-tiles. A k-tile of 96 channels
    may begin in the middle of a tap."""
    x, w = tensor(32, channels, 56, 56, dtype=f16), tensor(128, channels, 3, 3, dtype=f16)
    y = convolution(x, w, [stride], [dilation], [dilation])
    a = assembly([y], "sm_90a", y, (x, w, y))
    assert "cuda.hopper" in a.note
    step = loop_with(a.text, "LDGSTS")
    copies = len(step.places("LDGSTS"))
    assert copies >= 8
    assert len(step.code) <= 10 * copies + 100  # waiting, arriving, the copy engine


@pytest.mark.parametrize("shape", [(Var("n"), 128, 28, 28), (3, 64, 15, 27, 25)], ids=["symbolic", "volumes"])
def test_places_of_rows_do_not_spill(shape: tuple[Dim, ...]) -> None:
    """Offsets of 64 bits, and coordinates of three dimensions, take more of the producer's registers than those of
    images of a known size; consumers of tiles of 256x128 leave it 120."""
    rank = len(shape) - 2
    x, w = tensor(*shape, dtype=f16), tensor(256, shape[1], *[3] * rank, dtype=f16)
    y = convolution(x, w, [1], [1], [1])
    task = fused([y], strides={n: channels_last(*n.shape) for n in (x, w, y)})
    p, target = find_product(task), cuda_target("sm_90a")
    assert p is not None
    proof = Proof(1)
    for config in (
        HopperConfig("wgmma_m64n128k16_f16_f32", 256, 128, 2, 3, boxed=True),
        HopperConfig("wgmma_m64n128k16_f16_f32", 128, 128, 2, 6, boxed=True),
    ):
        found = proof.compile(source_of(schedule_config(p, config, target), "sm_90a"), "sm_90a").resources
        assert found.spills == found.stack == 0
    proof.close()


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_images_of_which_every_channel_is_on_its_own(dtype: DType, isa: str) -> None:
    x, w = tensor(8, 64, 56, 56, dtype=dtype), tensor(64, 1, 3, 3, dtype=dtype)
    y = convolution(x, w, [2], [1], [1], groups=64)
    z = activations.relu(add_channel_bias(y, tensor(64, dtype=dtype)))
    a = assembly([z], isa, y, (x, z), {w: beside(*w.shape)})
    assert a.global_loads(narrow=False) > a.global_loads(narrow=True) == 0
    assert a.has("STG") == a.has("STG", "128") > 0


HEAVY = (
    ("product with an epilogue f64", MatmulConfig("simt", 128, 128, 8, 32, 64, 2, 8, 2)),
    ("product right 40x24x72 tf32", MatmulConfig("mma_m16n8k8_tf32_f32", 256, 128, 32, 64, 64, 3, 8)),
    ("convolution 3x3 f16", MatmulConfig("mma_m16n8k16_f16_f32", 128, 128, 32, 64, 64, 4, 8, 2)),
    ("convolution 3x3 strided bf16", MatmulConfig("mma_m16n8k16_bf16_f32", 256, 128, 64, 64, 64, 3, 8)),
    ("convolution 1x1 f32", MatmulConfig("simt", 64, 128, 16, 32, 64, 2, 8)),
)
"""Configurations that need nearly all registers of a thread, or whose loops have so few iterations that the assembler
would unroll them, with the loads of all iterations at once."""


@pytest.mark.parametrize(("name", "config"), HEAVY, ids=lambda v: str(v).split(",")[0])
def test_the_heaviest_products_suffice_with_their_registers(name: str, config: MatmulConfig) -> None:
    (subject,) = (s for s in (*product_subjects(), *convolution_subjects()) if str(s) == name)
    target = replace(cuda("sm_80"), tf32=True)
    p = find_product(subject.case.task)
    assert p is not None
    assert why_not(p, config, target) is None
    assert registers(p, config, target) > target.registers_per_thread // 2
    proof = Proof(1)
    found = proof.compile(source_of(schedule_config(p, config, target), "sm_80"), "sm_80").resources
    proof.close()
    assert found.spills == found.stack == 0
    assert found.registers > target.registers_per_thread // 3


def test_what_would_spill_is_no_configuration() -> None:
    """The address of an image whose index is known only later takes registers, and a larger stage leaves none free."""
    (subject,) = (s for s in convolution_subjects() if str(s) == "convolution 3x3 of n f16")
    p = find_product(subject.case.task)
    assert p is not None
    target, large = cuda("sm_80"), MatmulConfig("mma_m16n8k16_f16_f32", 256, 128, 64, 64, 64, 3, 8)
    assert why_not(p, large, target) == "a thread needs about 260 registers, but has 255"
    proof = Proof(1)
    with pytest.raises(KernelResourceError, match="runs out of registers"):
        proof.compile(source_of(schedule_config(p, large, target), "sm_80"), "sm_80")
    for neighbour in (replace(large, block_m=128, block_n=256), replace(large, block_k=32)):
        assert why_not(p, neighbour, target) is None
        found = proof.compile(source_of(schedule_config(p, neighbour, target), "sm_80"), "sm_80").resources
        assert found.spills == 0
        assert abs(found.registers - most_registers(p, neighbour, target)) < 32
    proof.close()


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
def test_attention(isa: str) -> None:
    q, k, v = (tensor(4, 16, 1024, 64, dtype=f16) for _ in range(3))
    a = assembly([attention(q, k, v, causal=True)], isa)
    assert "cuda.attention" in a.note
    assert multiplies_on_tensor_cores(a, isa)
    assert (copied_by_engine(a) if isa == "sm_90a" else a.has("LDGSTS", "128")) > 0
    assert a.global_loads(narrow=True) == 0
    assert sum(n for name, n in a.found.items() if name.startswith("MUFU.EX2")) > 0


@pytest.mark.parametrize("causal", [False, True])
def test_attention_softens_while_it_weighs(causal: bool) -> None:
    """The main loop of Hopper's attention: no weight is computed after the wait for the values multiplied meanwhile;
    one instruction for a maximum, two for a weight; masks only for tiles with masked keys."""
    q, k, v = (tensor(1, 16, 4096, 128, dtype=f16) for _ in range(3))
    a = assembly([attention(q, k, v, causal=causal)], "sm_90a")
    loop = loop_with(a.text, "HGMMA", "MUFU.EX2")
    (done,) = loop.places("WARPGROUP.DEPBAR.LE gsb0, 0x0")
    assert loop.places("MUFU.EX2")[-1] < done
    assert len(loop.places("MUFU.EX2")) == 64 + 2
    assert loop.shortest <= 560
    assert len(loop.places("FSEL")) <= 4 or causal
    if causal:
        (skip,) = loop.skips
        assert sum(skip[0] < n < skip[1] for n in loop.places("FSEL")) == 64


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
def test_attention_of_one_query(isa: str) -> None:
    q, k, v = (tensor(1, h, n, 128, dtype=f16) for h, n in ((32, 1), (8, 4096), (8, 4096)))
    a = assembly([attention(q, k, v)], isa)
    assert "split=" in a.note
    assert a.has("LDGSTS", "128") > 0
    assert a.has("HMMA") > 0
    assert a.global_loads(narrow=True) < a.global_loads(narrow=False)  # those of other blocks' parts


def of_memory(dtype: DType) -> Iterator[tuple[str, list[Node], list[Node]]]:
    """Work bound by memory: name, outputs, images with the channels last."""
    x, y = tensor(1024, 1024, dtype=dtype), tensor(1024, dtype=dtype)
    yield "element-wise", [activations.gelu(arithmetic.add(x, y))], []
    yield "softmax", [softmax.softmax(x, 1)], []
    yield "layer norm", layer_norm(x, 1), []
    image = tensor(8, 64, 56, 56, dtype=dtype)
    pooled = pooling.max_pool(image, 2, [3, 3], [2, 2], [1, 1])[0]
    yield "pooling", [pooled], [image, pooled]


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_what_memory_bounds_moves_16_bytes_at_once(dtype: DType, isa: str) -> None:
    for name, outputs, last in of_memory(dtype):
        a = assembly(outputs, isa, last=last)
        assert a.global_loads(narrow=False) > a.global_loads(narrow=True) == 0, name
        assert a.has("STG") == a.has("STG", "128") > 0, name


def divides(a: Assembly) -> bool:
    """True if there is a division with IEEE 754 rounding, whose rare cases are a call."""
    return a.has("CALL") > 0


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_softmax_divides_once_for_each_row(dtype: DType) -> None:
    a = assembly([softmax.softmax(tensor(16384, 4096, dtype=dtype), 1)], "sm_90a")
    assert "slots=8" in a.note
    assert len(listing(a.text)) <= 1200
    assert a.has("CALL") == 1
    assert a.has("FCHK") == 0
    single = assembly([softmax.softmax(tensor(16384, 2048), 1)], "sm_90a")
    assert single.has("CALL") > 1  # results of f32 are divided as they are written


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_activations_of_16_bits_divide_nothing(dtype: DType) -> None:
    x = tensor(1 << 20, dtype=dtype)
    silu = assembly([activations.silu(x)], "sm_90a")
    sigmoid, tanh = (assembly([pointwise(n, (x,), partial(call, n))], "sm_90a") for n in ("sigmoid", "tanh"))
    assert not divides(tanh)
    assert divides(silu) == divides(sigmoid) == (dtype == f32)
    assert dtype == f32 or sigmoid.has("MUFU", "EX2") == sigmoid.has("MUFU", "RCP") == 8
    centred = assembly([pointwise("centred", (x,), lambda v: call("sigmoid", v) - 0.5)], "sm_90a")
    assert divides(centred)  # near 0 the difference keeps every digit of the sigmoid


@pytest.mark.parametrize("isa", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, i8], ids=str)
def test_transposes_of_narrow_elements_move_16_bytes_at_once(dtype: DType, isa: str) -> None:
    turned = views.permute(tensor(1024, 768, dtype=dtype), (1, 0))
    a = assembly([arithmetic.add(turned, tensor(768, 1024, dtype=dtype))], isa)
    assert "cuda.transpose" in a.note
    assert a.global_loads(narrow=False) > a.global_loads(narrow=True) == 0
    assert a.has("STG") == a.has("STG", "128") > 0


def test_rows_of_a_table() -> None:
    a = assembly([gather.embedding(tensor(1000, 768, dtype=f16), tensor(128, dtype=i64))], "sm_80")
    assert a.has("LDG", "128") == 1
    assert a.has("STG", "128") == 1
