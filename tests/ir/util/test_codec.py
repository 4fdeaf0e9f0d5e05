"""JSON codecs: what is written is read back, and everything else is refused with its path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from taskmap.ir.util.codec import (
    FLAG,
    TEXT,
    Json,
    many,
    mapping,
    matching,
    one_of,
    optional,
    parsed,
    record,
    row,
    text,
    whole,
)


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    shape: tuple[int, ...] | None
    kind: str = "input"
    places: tuple[tuple[int, bool], ...] = ()
    comment: str = ""

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("no port is called bad")


PORT = record(
    Port,
    name=matching(re.compile("[a-z]+"), "a word"),
    sizes=optional(many(whole(1, 9))).of("shape"),
    kind=one_of(["input", "output"]),
    places=many(row(whole(), FLAG)),
    comment=TEXT.omitted(""),
)
WRITTEN: dict[str, Any] = {"name": "x", "sizes": [1, 8], "kind": "input", "places": [[3, True]]}


@pytest.mark.parametrize(
    "port", [Port("x", (1, 8), "input", ((3, True),)), Port("y", None, "output", comment="a text"), Port("z", ())]
)
def test_values_come_back(port: Port) -> None:
    assert PORT.read(Json(PORT.write(port), "port")) == port


def test_fields_have_their_names_and_defaults_are_left_out() -> None:
    assert PORT.write(Port("x", (1, 8), "input", ((3, True),))) == WRITTEN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "X"}, "port.name is not a word."),
        ({"name": 1}, "port.name is not a text."),
        ({"name": "bad"}, "port: no port is called bad"),
        ({"sizes": [1, 9]}, "port.sizes[1] is not a whole number from 1 to below 9."),
        ({"sizes": [True]}, "port.sizes[0] is not a whole number from 1 to below 9."),
        ({"sizes": 3}, "port.sizes is not a list."),
        ({"kind": "other"}, "port.kind is not one of input, output."),
        ({"kind": ["input"]}, "port.kind is not one of input, output."),
        ({"places": [[1]]}, "port.places[0] is not a list of 2."),
        ({"places": [[1, 1]]}, "port.places[0][1] is not true or false."),
        ({"comment": None}, "port.comment is not a text."),
    ],
)
def test_other_values_are_refused_with_their_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PORT.read(Json({**WRITTEN, **change}, "port"))


@pytest.mark.parametrize("name", ["name", "sizes", "kind", "places"])
def test_a_field_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"^port has no {name}.$"):
        PORT.read(Json({k: v for k, v in WRITTEN.items() if k != name}, "port"))


def test_something_other_than_an_object() -> None:
    with pytest.raises(ValueError, match=r"^port is not an object\.$"):
        PORT.read(Json([], "port"))


def test_conditions_and_checks() -> None:
    even = many(whole()).where(lambda ns: len(ns) % 2 == 0, "of even length")
    assert even.read(Json([1, 2], "list")) == (1, 2)
    with pytest.raises(ValueError, match=r"^list is not of even length\.$"):
        even.read(Json([1], "list"))
    tall = PORT.where(lambda p: p.shape != (1,), "tall", at="sizes")
    with pytest.raises(ValueError, match=r"^port\.sizes is not tall\.$"):
        tall.read(Json({**WRITTEN, "sizes": [1]}, "port"))


def test_texts_have_a_length_and_whole_characters() -> None:
    assert text(3).read(Json("abc")) == "abc"
    for value in ("abcd", "\ud800"):
        with pytest.raises(ValueError, match="is not a text"):
            text(3).read(Json(value))


def test_objects_with_any_fields() -> None:
    sizes = mapping(whole(0, 9))
    assert sizes.read(parsed(b'{"a": 1, "b": 2}')) == {"a": 1, "b": 2} == sizes.write({"a": 1, "b": 2})
    with pytest.raises(ValueError, match=r"^the sizes\.b is not a whole number from 0 to below 9\.$"):
        sizes.read(parsed('{"b": 9}', "the sizes"))
    with pytest.raises(ValueError, match=r"^the sizes is not an object\.$"):
        sizes.read(parsed("[]", "the sizes"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "Expecting"),
        ('{"a": 1, "a": 2}', "an object of the sizes has a field twice."),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_invalid_documents_are_refused(document: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(document, "the sizes")
