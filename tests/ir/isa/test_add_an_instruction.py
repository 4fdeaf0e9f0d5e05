"""docs/add-an-instruction.md works when followed literally, changes to the table included, and still afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.following import add, blocks, copy_of_checkout, passed
from tests.pages import run_page

PAGE = "add-an-instruction.md"
NEEDED = (
    f"docs/{PAGE}", "tests/pages.py", "tests/following.py", "tests/ir/isa/test_add_an_instruction.py",
    "tests/ir/isa/test_instructions.py", "tests/ir/isa/test_instruction_fragments.py",
    "tests/ir/isa/instruction_kernels.py", "tests/schedules/running.py",
    "tests/backend/sim", "tests/backend/cuda_calls.py", "tests/backend/cuda/test_instructions.py",
)  # fmt: skip
TABLE = "ir/isa/table.py"
FRAGMENTS = "tests/ir/isa/test_instruction_fragments.py"
TYPES = "from taskmap.ir.types import ALL_DTYPES, DType, f32, f64, i32"


def test_the_page(tmp_path: Path) -> None:
    names = run_page(PAGE, tmp_path)
    assert {"lowered", "on_gpu"} <= set(names)


def test_the_entry_in_the_table_is_checked(followed: Path) -> None:
    """The page's entry for a CPU is added, and the generic test run on it."""
    assert passed(followed, "mla_i64x2", "tests/ir/isa/test_instructions.py") == 4


def test_the_instruction_of_a_gpu_is_checked(followed: Path) -> None:
    """The page's entry, its device function and its twin are added, and the generic tests run on them."""
    name = "mma_m16n8k8_f64_f64"
    assert passed(followed, name, "tests/ir/isa/test_instructions.py", "tests/backend/sim/test_instructions.py") == 3
    assert passed(followed, "compiles and sm_90a", "tests/backend/cuda/test_instructions.py") == 1
    assert passed(followed, f"{name} or every_shape", FRAGMENTS) == 2


def test_the_page_holds_once_it_was_followed(followed: Path) -> None:
    """It shows the same in a checkout that already has its entries; their tests then add nothing twice."""
    assert passed(followed, "test_the_page and not once", "tests/ir/isa/test_add_an_instruction.py") == 1
    changed = [followed / name for name in (TABLE, "ir/isa/mma.py", FRAGMENTS)]
    texts = [path.read_text(encoding="utf-8") for path in changed]
    added = ('"mla_i64x2"', "_mma(16, 8, 8, f64", '("m16n8k8", 64)')
    assert [text.count(n) for text, n in zip(texts, added, strict=True)] == [1, 1, 2]
    follow(followed)
    assert [path.read_text(encoding="utf-8") for path in changed] == texts


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout in which the page was followed."""
    checkout = copy_of_checkout(tmp_path_factory.mktemp("followed"), *NEEDED)
    follow(checkout)
    return checkout


def follow(checkout: Path) -> None:
    """Write the page's code into the files that it names."""
    entry, device, twin, of_gpu, of_a, of_b = blocks(PAGE, "python entry", "cuda", "c")
    table = checkout / TABLE
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace(f"{TYPES}\n", f"{TYPES}, i64\n"), encoding="utf-8")
    add(table, entry, after="CPU_INSTRUCTIONS: tuple", before="\n)\n")
    add(checkout / "ir" / "isa" / "mma.py", of_gpu, after="MMA: tuple", before="\n)\n")
    add(checkout / "backend" / "cuda" / "device" / "mma.cuh", device)
    add(checkout / "backend" / "sim" / "device" / "matrix.h", twin, after="TM_MMA(", before="\n#undef TM_MMA\n")
    for name, formula in (("A", of_a), ("B", of_b)):
        add(checkout / FRAGMENTS, formula, after=f"\n{name}: dict[tuple[str, int], Formula]", before="\n}\n")
