"""Pictures of mappings and layouts, in the terminal and as SVG."""

from pathlib import Path
from xml.etree import ElementTree

from taskmap.ir.algebra.grid_picture import Drawing
from taskmap.ir.algebra.layout import row_major
from taskmap.ir.algebra.mapping import from_function, repeat, replicate, spatial

ACCUMULATOR = repeat(2, 1) * spatial(8, 4) * repeat(1, 2)


def cells(drawing: Drawing) -> list[list[str]]:
    return [[cell.label for cell in row] for grid in drawing.grids for row in grid.cells]


def test_each_cell_shows_its_worker() -> None:
    inverse = ACCUMULATOR.inverse()
    assert cells(ACCUMULATOR.draw()) == [[str(inverse(i, j)[0]) for j in range(8)] for i in range(16)]
    worker, slot = inverse(9, 5)
    assert cells(ACCUMULATOR.draw(slots=True))[9][5] == f"{worker}:{slot}"


def test_text() -> None:
    assert str((repeat(2, 1) * spatial(1, 3)).draw()) == (
        "repeat(2, 1) * spatial(1, 3)        2×3 tasks, 3 workers, 2 each\n"
        "\n"
        "    0 1 2\n"
        "  ┌───────\n"
        "0 │ 0 1 2\n"
        "1 │ 0 1 2"
    )
    assert repr(ACCUMULATOR.draw()) == str(ACCUMULATOR.draw())


def test_one_dimension_is_a_row_and_zero_a_cell() -> None:
    assert cells(spatial(4).draw()) == [["0", "1", "2", "3"]]
    assert cells(repeat().draw()) == [["0"]]


def test_more_dimensions_are_several_grids() -> None:
    drawing = spatial(2, 2, 2).draw()
    assert [grid.caption for grid in drawing.grids] == ["[0, :, :]", "[1, :, :]"]
    assert cells(drawing) == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]


def test_the_middle_of_a_large_mapping_is_left_out() -> None:
    drawing = (spatial(1 << 20, 1 << 20)).draw(limit=8)
    (grid,) = drawing.grids
    assert len(grid.rows) == len(grid.columns) == 9
    assert cells(drawing)[0][:2] == ["0", "1"]
    assert cells(drawing)[-1][-1] == str((1 << 40) - 1)
    assert "⋮" in str(drawing)
    assert "…" in str(drawing)
    stacked = spatial(1 << 20, 2, 2).draw(limit=3)
    assert [grid.caption for grid in stacked.grids][-2:] == ["…", "[1048575, :, :]"]


def test_shared_and_missing_tasks_show() -> None:
    assert cells((replicate(4, rank=1) * spatial(2)).draw()) == [["0+3", "1+3"]]
    assert cells(from_function(lambda worker: [(1,)], (2,), 1).draw()) == [["·", "0"]]


def test_svg_is_well_formed_and_says_the_same(tmp_path: Path) -> None:
    for drawing in (ACCUMULATOR.draw(slots=True), spatial(2, 3, 4).draw(), spatial(100, 100).draw(), repeat().draw()):
        root = ElementTree.fromstring(drawing.svg())
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        for label in flat(cells(drawing)):
            assert label in texts
        assert drawing._repr_svg_() == drawing.svg()
    lambda_mapping = from_function(lambda worker: [(0,)], (1,), 1)  # the name "<lambda>" must be escaped
    lambda_mapping.draw().save(tmp_path / "picture.svg")
    ElementTree.parse(tmp_path / "picture.svg")


def test_one_worker_has_one_colour() -> None:
    (grid,) = ACCUMULATOR.draw(slots=True).grids
    hues = {cell.label.split(":")[0]: cell.hue for row in grid.cells for cell in row}
    assert len(set(hues.values())) == 32


def test_layouts_draw_their_addresses() -> None:
    assert cells(row_major(2, 3).draw()) == [["0", "1", "2"], ["3", "4", "5"]]


def flat(rows: list[list[str]]) -> list[str]:
    return [label for row in rows for label in row]
