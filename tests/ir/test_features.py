"""CPU features: names, shorthands, and the targets that have them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from taskmap.ir.errors import InputError, InvalidOptionError
from taskmap.ir.features import (
    FEATURES,
    ISA_FEATURES,
    closest_isa,
    extra_features,
    in_order,
    isa_text,
    missing_features,
    read_features,
    read_isa_text,
)
from taskmap.ir.isa.entry import at_least, having
from taskmap.ir.target import cpu_target, cuda_target


def test_each_instruction_set_includes_the_one_before() -> None:
    sets = [frozenset(names) for names in ISA_FEATURES.values()]
    assert all(smaller < larger for smaller, larger in pairwise(sets))
    assert [closest_isa(names) for names in ISA_FEATURES.values()] == list(ISA_FEATURES)


def test_what_a_feature_needs_comes_before_it() -> None:
    names = list(FEATURES)
    assert all(names.index(need) < names.index(name) for name in names for need in FEATURES[name])


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("none", ()),
        ("avx512_bf16", ("avx512_bf16",)),
        (" avx512_bf16 ,avx512_vnni,avx512_bf16", ("avx512_vnni", "avx512_bf16")),
    ],
)
def test_a_list_is_read_in_one_order(text: str, features: tuple[str, ...]) -> None:
    assert read_features(text) == features


@pytest.mark.parametrize("text", ["", "avx512_bf61", "avx512_bf16,", "none,avx2", "AVX2"])
def test_an_unknown_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="unknown CPU feature"):
        read_features(text)


def test_a_target_lists_the_features_of_its_shorthand_and_more() -> None:
    plain, more = cpu_target("avx512", 2), cpu_target("avx512", 2, features=["avx512_bf16"])
    assert plain.features == ISA_FEATURES["avx512"]
    assert extra_features(more.features, "avx512") == ("avx512_bf16",)
    assert plain != more
    assert repr(plain) != repr(more)
    assert cpu_target("generic", 2).features == ()
    assert in_order(["avx512_bf16", "unknown", "avx2"]) == ("avx2", "avx512_bf16")
    assert missing_features(["avx512_bf16", "avx2"], plain.features) == ("avx512_bf16",)


@pytest.mark.parametrize(("isa", "name"), [("avx2", "avx512_bf16"), ("avx512", "amx_bf16"), ("generic", "avx_vnni")])
def test_a_feature_without_its_needs_is_refused(isa: str, name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"the CPU feature {name} cannot be used with {isa}"):
        cpu_target(isa, 2, features=[name])


def test_an_unknown_feature_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="unknown CPU feature 'avx9'"):
        cpu_target("avx2", 2, features=["avx9"])
    with pytest.raises(InputError, match="there is no CPU feature 'avx9'"):
        having("avx9")


def test_an_entry_asks_for_features() -> None:
    plain, more = cpu_target("avx512", 2), cpu_target("avx512", 2, features=["avx512_bf16"])
    needs = having("avx512_bf16")
    assert (needs(plain), needs(more), needs(cuda_target("sm_90a"))) == (False, True, False)
    assert at_least("avx512")(more)
    assert str(needs) == "cpu with avx512_bf16"


@pytest.mark.parametrize("parts", [("avx512", ("avx512_bf16", "amx_tile")), ("avx2", ()), ("unknown", ("unknown",))])
def test_an_instruction_set_with_features_is_read_as_written(parts: tuple[str, tuple[str, ...]]) -> None:
    assert read_isa_text(isa_text(*parts)) == parts
