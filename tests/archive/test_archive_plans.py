"""An archive accepts exactly the printed plans; it refuses everything else and lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import taskmap
from taskmap.archive.conditions import conditions_of, plan_text, shapes_of
from taskmap.archive.write import Written, compile_onnx
from taskmap.ir.errors import InputError, TaskmapError, UnsupportedError
from tests.onnx.models import FLOAT, model


def written(tmp_path: Path, proto: onnx.ModelProto, sizes: dict[str, tuple[int, ...]] | None = None) -> Written:
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return compile_onnx(path, tmp_path / "model.taskmap", sizes=sizes)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def joined() -> onnx.ModelProto:
    """Sizes with conditions: r + 2 = s, and k is 5."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Concat", ["a", "a", "z"], ["c"], axis=1),
        helper.make_node("Add", ["c", "q"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {
        "x": (FLOAT, ["b", 2]),
        "z": (FLOAT, ["b", "r"]),
        "q": (FLOAT, ["b", "s"]),
    }
    return model(nodes, inputs, ["y"], {"w": floats(2)})


def test_what_is_read_is_the_binding_that_was_written(tmp_path: Path) -> None:
    made = written(tmp_path, joined(), {"b": (2, 3), "r": (4,), "s": (8,)}).manifest
    read = taskmap.load(tmp_path / "model.taskmap").manifest
    assert read.to_json() == made.to_json()
    known = [(a.binding, b.binding) for a, b in zip(made.plans, read.plans, strict=True) if not a.binding.dims]
    assert known
    for ours, theirs in known:  # symbolic sizes get new variables
        assert ours == theirs


def test_a_plan_for_all_sizes_says_its_conditions(tmp_path: Path) -> None:
    made = written(tmp_path, joined(), {"b": (2, 3), "r": (4,), "s": (8,)})
    loaded = taskmap.load(made.path)
    plans = {plan_text(made.manifest, p): p for p in made.manifest.plans}
    general = [p for p in plans.values() if p.binding.dims]
    for b, r, s in ((2, 4, 8), (3, 4, 8), (7, 1, 5), (1, 9, 13)):
        fits = (s == r + 4) and (bool(general) or (b in (2, 3) and r == 4))
        arrays = floats(b, 2), floats(b, r), floats(b, s)
        assert loaded.has_plan(*arrays) is fits
        if fits:
            np.testing.assert_array_equal(loaded(*arrays)[0][:, :4], 3.0)
    assert [c for p in general for c in conditions_of(made.manifest, p)], "the condition on s is said"
    for wrong in ((2, 4, 9), (0, 4, 8)):
        b, r, s = wrong
        with pytest.raises(InputError, match="no plan") as caught:
            loaded(floats(b, 2), floats(b, r), floats(b, s))
        assert all(text in str(caught.value) for text in plans)
        assert ("at least 1" in str(caught.value)) is (0 in wrong and bool(general))


def test_a_dimension_that_the_weights_fix_is_printed_as_a_number(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [None, "k"])}, ["y"], {"w": floats(64, 3)})
    made = written(tmp_path, proto)
    loaded = taskmap.load(made.path)
    (plan,) = made.manifest.plans
    assert shapes_of(made.manifest, plan) == [["x.0", 64]]
    assert conditions_of(made.manifest, plan) == []
    assert loaded(floats(7, 64))[0].shape == (7, 3)
    with pytest.raises(InputError, match=r"plans for \[x\.0, 64\]\."):
        loaded(floats(7, 63))


def test_sizes_that_nobody_gave_are_named_in_the_error(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, ["b", "k"])}, ["y"], {"w": floats(5, 4)})
    with pytest.raises(TaskmapError, match=r"'b' 1, 'k' 1.*--shape b=SIZE"):
        written(tmp_path, proto)
    assert not (tmp_path / "model.taskmap").exists()


def test_examples_that_no_memory_holds_are_not_tried(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, ["a", "b", "c", "k"])}, ["y"], {"w": floats(5, 4)})
    with pytest.raises(TaskmapError, match="the sizes 1 and 5 differ"):
        written(tmp_path, proto)


def test_no_archive_is_written_that_would_not_be_read(tmp_path: Path) -> None:
    name = "x" * 5000
    proto = model([helper.make_node("Relu", [name], ["y"])], {name: (FLOAT, ["b"])}, ["y"])
    with pytest.raises(UnsupportedError, match="the model cannot be archived"):
        written(tmp_path, proto)
    assert not (tmp_path / "model.taskmap").exists()
