"""The kernel key: it changes with everything that can change a binary, and with nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.backend.cpu.toolchain import Toolchain, find_toolchain
from taskmap.backend.store import key as module
from taskmap.backend.store.key import KernelSource, kernel_key, key_parts

SOURCE = KernelSource("f", "int f(void) { return 1; }", "typedef int t;")
SETTING: dict[str, Any] = {"compiler": "gcc 12; x86_64", "flags": ("-O3", "-g"), "isa": "avx2", "abi": 1}


def key(source: KernelSource = SOURCE, **changed: Any) -> str:
    return kernel_key(key_parts(source, **{**SETTING, **changed}))


def test_key_is_stable() -> None:
    again = KernelSource("f", "int f(void) { return 1; }", "typedef int t;")
    assert key() == key(again)
    assert len(key()) == 64
    assert int(key(), 16) >= 0


@pytest.mark.parametrize(
    "changed",
    [
        {"source": KernelSource("f", "int f(void) { return 2; }", "typedef int t;")},
        {"source": KernelSource("g", "int f(void) { return 1; }", "typedef int t;")},
        {"source": KernelSource("f", "int f(void) { return 1; }", "typedef long t;")},
        {"source": KernelSource("f", "", "int f(void) { return 1; }typedef int t;")},
        {"source": KernelSource("f", "int f(void) { return 1; }", ("typedef int t;",))},
        {"compiler": "gcc 13; x86_64"},
        {"compiler": "gcc 12; aarch64"},
        {"flags": ("-O2", "-g")},
        {"flags": ("-g", "-O3")},
        {"flags": ("-O3 -g",)},
        {"isa": "avx512"},
        {"abi": 2},
    ],
    ids=str,
)
def test_each_input_changes_the_key(changed: dict[str, Any]) -> None:
    assert key(**changed) != key()


@pytest.mark.parametrize("option", [{"fast_math": True}, {"contract": True}, {"isa": "generic"}], ids=str)
def test_each_option_of_the_toolchain_changes_the_key(option: dict[str, Any]) -> None:
    def of(toolchain: Toolchain) -> str:
        return key(compiler=toolchain.identity, flags=toolchain.flags, isa=toolchain.isa)

    default, other = find_toolchain(), find_toolchain(**option)
    if default == other:
        pytest.skip("this CPU has nothing but the generic instruction set")
    assert of(default) != of(other)
    assert of(default) == of(find_toolchain(timeout=1.0))  # how long it may take changes nothing


@pytest.mark.parametrize("symbol", ["", "1f", "f g", "f;", 'f"', "f\n", "é", "a-b"])
def test_a_symbol_that_is_no_identifier_is_refused(symbol: str) -> None:
    with pytest.raises(ValueError, match="not a C identifier"):
        KernelSource(symbol, "")


@pytest.mark.parametrize("symbol", ["f", "_", "_f9", "matmul_0af3"])
def test_identifiers_are_accepted(symbol: str) -> None:
    assert KernelSource(symbol, "").symbol == symbol


WORDS = (
    "i8",
    "u32x16",
    "b8",
    "i64x1",
    "i64x16",
    "i64 *",
    "((i64)(",
    "tm_min_i64x1(",
    "tm_load_i8x16(",
    "m32x16",
    "f32",
)


@given(st.lists(st.sampled_from((*WORDS, " ", "x", "_", "(", "\n")), max_size=12).map("".join))
def test_integers_are_seen_as_the_pattern_sees_them(text: str) -> None:
    assert KernelSource("tm_k", text).kind.integers == (module._INTEGERS.search(text) is not None)


def test_the_pattern_is_tried_only_where_an_integer_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    class Counted:
        def match(self, text: str, at: int) -> None:
            tried.append(at)

    monkeypatch.setattr(module, "_INTEGERS", Counted())
    text = "const f32x16 v = tm_load_f32x16(p + (tm_min_i64x1(tile_6, 3LL) * 64LL));\n" * 1000
    assert not KernelSource("tm_of_many_floats", text).kind.integers
    assert len(tried) == 1000
