"""Records: unchanged after writing and reading, refused when altered, used only where valid."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmap.errors import TuningError
from taskmap.tuning.record import DAY, Conditions, Record, Verdict, from_text, to_text
from tests.tuning.records import HERE, MATMUL, record, records


@given(records)
def test_a_line_is_read_as_it_was_written(r: Record) -> None:
    line = to_text(r)
    assert "\n" not in line
    assert from_text(line) == r


@given(records, st.data())
def test_a_changed_line_is_refused(r: Record, data: st.DataObject) -> None:
    content = json.loads(to_text(r))
    name = data.draw(st.sampled_from(sorted(content)))
    content[name] = [content[name], 1]
    with pytest.raises(TuningError):
        from_text(json.dumps(content))


@pytest.mark.parametrize("line", ["", "[]", "{}", "null", '"text"', "{" * 5000, '{"seconds": NaN}', "\x00", "[1,"])
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(TuningError, match=r"is not a tuning record|was changed"):
        from_text(line)


def test_times_and_verdict_belong_together() -> None:
    with pytest.raises(TuningError, match=r"is ok and has 0 samples"):
        Record(MATMUL, "a", Verdict.OK, HERE, 0.0)
    with pytest.raises(TuningError, match=r"is hung and has 1 samples"):
        Record(MATMUL, "a", Verdict.HUNG, HERE, 0.0, (1.0,))
    for impossible in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(TuningError, match="an invalid time"):
            record("a", impossible)


def test_typical_time_and_spread() -> None:
    assert record("a", 1.0, 2.0, 9.0).typical == 1.5
    assert record("a", 1.0, 2.0, 3.0, 4.0, 5.0).spread == pytest.approx(1.0)
    assert record("a", 1.0).spread == 0.0
    assert record("a").typical == math.inf


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [
        ("device", replace(HERE, device="Xeon")),
        ("compiler", replace(HERE, compiler="clang")),
        ("version", replace(HERE, version="2")),
        ("driver", replace(HERE, driver="580")),
        ("threads", replace(HERE, threads=8)),
    ],
)
def test_a_record_counts_only_under_its_conditions(name: str, elsewhere: Conditions) -> None:
    r = record("a", 1.0)
    assert r.stale(HERE, 2000.0) is None
    assert f"measured with {name}" in (r.stale(elsewhere, 2000.0) or "")


def test_the_clock_does_not_make_a_record_stale_but_the_future_does() -> None:
    r = record("a", 1.0, at=1000.0)
    assert r.stale(replace(HERE, clock=3000.0), 1000.0) is None
    assert "from the future" in (r.stale(HERE, 1000.0 - 2 * DAY) or "")
