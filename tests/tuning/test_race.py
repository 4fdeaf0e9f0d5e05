"""Racing: the same samples give the same winner, which is never dropped; clearly slower configurations are."""

from hypothesis import given
from hypothesis import strategies as st

from taskmap.tuning.race import Heat, confirmed, decided, doubtful, leader, next_round, surprises, survivors, united
from taskmap.tuning.record import typical

names = st.text("abcdef", min_size=1, max_size=3)
times = st.floats(1e-6, 1e-2)
samples = st.dictionaries(names, st.lists(times, min_size=1, max_size=9).map(tuple), min_size=1, max_size=6)


@given(samples, st.data())
def test_the_order_of_configurations_and_samples_does_not_matter(
    found: dict[str, tuple[float, ...]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(sorted(found)))
    shuffled = {name: tuple(data.draw(st.permutations(found[name]))) for name in order}
    assert leader(shuffled) == leader(found)
    assert survivors(shuffled) == survivors(found)
    assert decided(shuffled) == decided(found)


@given(samples)
def test_the_leader_survives_and_comes_first(found: dict[str, tuple[float, ...]]) -> None:
    left = survivors(found)
    assert left[0] == leader(found)
    assert all(typical(found[left[0]]) <= typical(found[c]) for c in found)


@given(samples, st.floats(1.6, 10))
def test_what_is_clearly_worse_is_dropped(found: dict[str, tuple[float, ...]], factor: float) -> None:
    slow = (typical(found[leader(found)]) * factor,) * 3
    assert "worse" not in survivors({**found, "worse": slow})


def test_doubt_shrinks_with_samples() -> None:
    assert survivors({"a": (1.0,), "b": (1.3,)}) == ("a", "b")
    assert survivors({"a": (1.0,) * 8, "b": (1.3,) * 8}) == ("a",)


def test_close_ones_are_repeated_and_not_for_ever() -> None:
    assert not decided({"a": (1.0,) * 3, "b": (1.005,) * 3})
    assert decided({"a": (1.0,) * 6, "b": (1.005,) * 6})
    assert not decided({"a": (1.0, 1.3) * 5, "b": (1.015, 1.2) * 5})
    assert decided({"a": (1.0, 1.3) * 6, "b": (1.015, 1.2) * 6})
    assert decided({"a": (1.0,)})
    assert decided({})


@given(samples, st.floats(0.1, 10))
def test_a_slower_machine_changes_nothing(found: dict[str, tuple[float, ...]], factor: float) -> None:
    slow = Heat({c: [s * factor for s in seconds] for c, seconds in found.items()})
    fast = Heat(found)
    baseline = min(found)
    both = united([slow, fast], baseline)
    for name, seconds in found.items():
        assert abs(typical(both[name]) / typical(seconds) - 1) < 1e-6 or len(seconds) > 1
        assert len(both[name]) == 2 * len(seconds)


def test_a_job_without_its_baseline_says_nothing() -> None:
    assert united([Heat({"b": (1.0,)})], "a") == {}
    assert united([Heat({"b": (1.0,)}), Heat({"a": (2.0,), "c": (3.0,)})], "a") == {"a": (2.0,), "c": (3.0,)}


def test_equal_times_are_decided_by_name() -> None:
    assert leader({"b": (1.0,), "a": (1.0,)}) == "a"


def test_looks_count_where_nothing_better_is_known() -> None:
    look = Heat({"a": (1.0, 1.0), "b": (3.0, 3.1), "c": (2.0, 2.0)}, look=True)
    rest = Heat({"a": (1.0,) * 4, "b": (0.9,) * 4})
    assert confirmed([look, rest]) == {"a", "b"}
    assert united([look, rest], "a") == {"a": (1.0,) * 4, "b": (0.9,) * 4, "c": (2.0, 2.0)}


def test_a_baseline_that_was_disturbed_makes_no_winner() -> None:
    disturbed = Heat({"a": (3.0, 3.0), "b": (1.1, 1.1)}, look=True)
    quiet = Heat({"a": (1.0, 1.0), "c": (0.9, 0.9)}, look=True)
    costs = {"a": 1.0, "b": 1.0, "c": 1.0}
    samples = united([disturbed, quiet], "a")
    assert leader(samples) == "b"
    assert set(next_round(samples, (), costs)) == {"a", "b", "c"}
    rest = Heat({"a": (1.0,) * 4, "b": (1.1,) * 4, "c": (0.9,) * 4})
    assert leader(united([disturbed, quiet, rest], "a")) == "c"


def test_what_is_slower_than_expected_is_a_surprise() -> None:
    found = {"a": (1.0,), "b": (3.0,), "c": (3.0,), "d": (3.0,), "e": (1.2,)}
    assert surprises(found, {"a": 10.0, "b": 11.0, "c": 30.0, "e": 10.0}) == ("b",)
    assert surprises(found, {}) == ()
    assert surprises({}, {"a": 1.0}) == ()


def test_a_surprise_is_measured_once_more_and_then_believed() -> None:
    costs = {"a": 1.0, "b": 1.0, "c": 3.0}
    look = {"a": (1.0,) * 2, "b": (3.0,) * 2, "c": (3.0,) * 2}
    assert doubtful(look, (), costs) == ("a", "b")
    assert next_round(look, (), costs) == ("a", "b")
    assert next_round({"a": (1.0,) * 4, "b": (3.0,) * 4, "c": (3.0,) * 2}, {"a", "b"}, costs) == ()
    back = {"a": (1.0,) * 4, "b": (1.0,) * 4, "c": (3.0,) * 2}
    assert next_round(back, {"a", "b"}, costs) == ("a", "b")
