"""Hostile imports: foreign, malformed, huge. They are refused line by line, or do no harm."""

import hashlib
import io
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmap.cli import main
from taskmap.cli.output import clipped, in_short, plain, plain_lines
from taskmap.errors import TuningError
from taskmap.tuning.database import Database
from taskmap.tuning.here import database_path
from taskmap.tuning.record import Record, Verdict, from_text, to_text
from taskmap.tuning.share import take
from tests.tuning.tuning_here import DEFAULT, OTHERS, here, operator

Capture = pytest.CaptureFixture[str]
UNKNOWN = ("list", "show", "best", "stats", "verify", "export", "explain-miss", "diff")


def content() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_text(Record(operator(), "x", Verdict.OK, here(), time.time() - 9, (1e-5,))))
    del found["check"]
    return found


def line(changed: dict[str, Any]) -> str:
    """A line with a correct checksum, which hostile writers can compute, too."""
    check = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:16]
    return json.dumps({"check": check, **changed}, sort_keys=True)


def changed(where: str, value: object) -> str:
    found = content()
    *folders, name = where.split(".")
    inner = found
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    return line(found)


def test_the_checksum_is_no_secret() -> None:
    assert from_text(line(content())).config == "x"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("config", "\ud800"),
        ("config", "x" * 2000),
        ("config", None),
        ("config", ["x"]),
        ("operator.name", 7),
        ("operator.shapes", "1" * 5000),
        ("operator", "cpu.matmul"),
        ("conditions", []),
        ("verdict", []),
        ("verdict", "perfect"),
        ("verdict", "crashed"),
        ("reason", "x" * 10_000),
        ("seconds", "123"),
        ("seconds", {"1": 1}),
        ("seconds", [True]),
        ("seconds", ["1"]),
        ("seconds", [None]),
        ("seconds", [[1.0]]),
        ("seconds", [1e308]),
        ("seconds", [5e-324]),
        ("seconds", [-1.0]),
        ("seconds", [10**400]),
        ("seconds", [1.0] * 2000),
        ("measured_at", "5"),
        ("measured_at", -1e300),
        ("measured_at", 1e300),
        ("measured_at", True),
        ("conditions.threads", 10**9),
        ("conditions.threads", -1),
        ("conditions.threads", 1.5),
        ("conditions.threads", "1"),
        ("conditions.clock", "nan"),
        ("conditions.clock", 1e300),
        ("conditions.device", 3),
    ],
)
def test_what_no_record_says_is_refused(where: str, value: object) -> None:
    with pytest.raises(TuningError, match=r"not a tuning record|has . samples"):
        from_text(changed(where, value))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
@pytest.mark.parametrize("where", ["measured_at", "clock"])
def test_what_is_no_number_is_refused(where: str, number: str) -> None:
    text = json.dumps(content() | {"measured_at": "@"} if where == "measured_at" else content()).replace('"@"', number)
    text = text.replace('"clock": ' + str(content()["conditions"]["clock"]), f'"clock": {number}')
    rest = text[1:]
    check = hashlib.sha256(text.encode()).hexdigest()[:16]
    with pytest.raises(TuningError):
        from_text(f'{{"check": "{check}", {rest}')


@pytest.mark.parametrize("deep", [500, 990, 5000, 30_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_depth(deep: int, brackets: tuple[str, str]) -> None:
    inner = brackets[0] * deep + "1" + brackets[1] * deep
    with pytest.raises(TuningError):
        from_text('{"check": "0123456789abcdef", "x": ' + inner + "}")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=4), t, max_size=3))
places = st.sampled_from(
    ["config", "measured_at", "operator", "conditions", "seconds", "verdict", "reason", "operator.layout"]
)


@settings(deadline=None, max_examples=150)
@given(places, trees)
def test_whatever_a_line_says_it_is_refused_or_kept_whole(where: str, value: object) -> None:
    text = changed(where, value)
    try:
        found = from_text(text)
    except TuningError:
        return
    assert from_text(to_text(found)) == found
    assert math.isfinite(found.typical) or found.verdict is not Verdict.OK


def test_a_line_without_an_end_is_passed_over(tmp_path: Path) -> None:
    class Endless(io.RawIOBase):
        """A quarter of a gigabyte of one line, and a record after it."""

        left = 1 << 28

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if self.left <= 0:
                last, self.after = self.after[: len(buffer)], self.after[len(buffer) :]
                buffer[: len(last)] = last
                return len(last)
            count = min(len(buffer), self.left)
            buffer[:count] = b"[" * count
            self.left -= count
            return count

        after = b"\n" + line(content()).encode() + b"\n"

    database = Database(tmp_path / "tuning.sqlite")
    taken = take(io.BufferedReader(Endless(), 1 << 20), database, "endless")
    assert (taken.read, taken.changed, taken.refused) == (1, 1, 1)
    database.close()


def test_a_long_reason_is_cut_where_it_is_written() -> None:
    long = Record(operator(), "x", Verdict.CRASHED, here(), 5.0, (), "\udc80" + "x" * 20_000)
    assert len(from_text(to_text(long)).reason) < 10_000


@pytest.fixture
def lied_to(cache_dir: Path, tmp_path: Path) -> Path:
    """A cache with two records, and imports whose names contain terminal control codes."""
    database = Database(database_path(str(cache_dir)))
    now = time.time() - 50
    database.add(
        [Record(operator(), c, Verdict.OK, here(), now, (t,)) for c, t in ((DEFAULT, 2e-5), (OTHERS[0], 1e-5))]
    )
    database.close()
    lies = [changed("config", "\033[31mred\033]0;title\a \u202eback"), changed("operator.name", "a\nb\r\033[2J")]
    failed = content() | {"verdict": "crashed", "seconds": [], "reason": "\033[2J\n\r", "config": "\033[2Jfailed"}
    lies += [line(failed), changed("operator.shapes", "%s%n{0}$(id)"), changed("operator.target", "cuda:\033[1m")]
    file = tmp_path / "\033[31mlies.jsonl"
    file.write_text("\n".join([*lies, "\033[31m{", changed("verdict", "\033[31m")]))
    assert main(["cache", "import", str(file)]) == 1
    return file


@pytest.mark.parametrize("action", UNKNOWN)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_name_commands_the_terminal(lied_to: Path, capsys: Capture, action: str, as_json: bool) -> None:
    assert main(["cache", "import", str(lied_to)]) == 1
    said = capsys.readouterr().out
    assert "\033" not in said
    assert "5 records read, 0 new or newer, 2 lines refused" in said
    sizes = ["--m", "12", "--n", "96", "--k", "33", "--threads", "1"]
    more = {"show": ["--shapes", operator().shapes, "--name", "cpu.matmul", "--target", "cpu:"], "diff": [str(lied_to)]}
    arguments = ["cache", action, *(sizes if action == "explain-miss" else more.get(action, []))]
    assert main([*arguments, *(["--json"] if as_json and action != "export" else [])]) in (0, 1)
    out, err = capsys.readouterr()
    assert not set("\033\r\a\u202e") & set(out + err)


def test_what_no_template_knows_does_not_hide_what_is_known(lied_to: Path, capsys: Capture) -> None:
    database = Database(database_path())
    database.add([from_text(changed("seconds", [1e-9]))])  # the configuration "x" is none
    database.close()
    capsys.readouterr()
    assert main(["cache", "best", "--shapes", operator().shapes, "--name", "cpu.matmul", "--json"]) == 0
    found = {b["operator"]: b["best"] for b in json.loads(capsys.readouterr().out)}
    assert found[str(operator())]["config"] == OTHERS[0]


def test_tuning_again_passes_over_what_is_unknown(lied_to: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["cache", "tune", "--name", "a\nb", "--seconds", "0.1"]) == 1
    err = capsys.readouterr().err
    assert "skipped a?b?" in err
    assert "\033" not in err


def test_what_is_shown() -> None:
    assert plain("a\033\u202e\u2028\ud800é") == "a????é"
    assert plain_lines("a\nb\033") == "a\nb?"
    assert clipped("x" * 201) == "x" * 199 + "…"
    assert in_short("Traceback\n\n  at line\nValueError: \033\n") == "Traceback ... ValueError: ?"
    assert in_short("") == ""
    assert in_short("one") == "one"
    assert clipped("x" * 200) == "x" * 200
