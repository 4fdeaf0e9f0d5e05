"""The drawing of a tree: well-formed, with every spec, step and mapping."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest

from examples.strategies.cpu_outer_product import cpu_outer_product
from examples.strategies.hopper import hopper
from examples.strategies.maxwell import maxwell
from examples.strategies.mma_small import mma_small
from taskmap.decompose import BLOCK, SHARED, MatMul, Strategy
from taskmap.ir.decompose.show import tree_lines
from taskmap.ir.decompose.steps import Tree

TREES = {
    "maxwell": maxwell(128, 128, 128),
    "tensor cores": mma_small(128, 128, 128),
    "warpgroups": hopper(128, 128, 128),
    "CPU": cpu_outer_product(128, 128, 128),
    "unfinished": MatMul(128, 128, 8).tile(64, 32).to(BLOCK).move("a", SHARED),
}


def texts(tree: Strategy) -> list[str]:
    root = ElementTree.fromstring(tree.svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", TREES)
def test_every_spec_and_every_step_is_drawn(name: str) -> None:
    tree = TREES[name]
    found = texts(tree)
    lines = [line.strip() for line in tree_lines(tree)]
    assert len(lines) > 3
    for line in lines:
        spec, _, step = line.partition("  ")
        assert spec in found
        assert step.strip() in found or not step
    assert tree._repr_svg_() == tree.svg()


def test_each_operand_of_a_finished_tree_has_its_mapping() -> None:
    tree = TREES["tensor cores"]
    titles = [t for t in texts(tree) if t[:3] in ("a: ", "b: ", "c: ")]
    assert titles == [f"{name}: {tree.mapping(name)}" for name in "abc"]
    assert not [t for t in texts(TREES["unfinished"]) if ": " in t and not t.startswith("Move")]


def test_boxes_of_a_tree_do_not_overlap() -> None:
    """Each spec of the main tree stands below the one before, whatever stands beside it."""
    assert isinstance(TREES["maxwell"], Tree)
    root = ElementTree.fromstring(TREES["maxwell"].svg())
    steps = list(root[1])
    tops = [float(g.attrib["transform"].split()[1].rstrip(")")) for g in steps]
    assert len(tops) == len(TREES["maxwell"].steps)
    assert all(b - a >= 40 for a, b in itertools.pairwise(tops))
