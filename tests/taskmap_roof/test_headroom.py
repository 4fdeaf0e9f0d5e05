"""Functions with room for frames behave as they did without."""

import time

import pytest

from taskmap.headroom import headroom


def test_arguments_results_and_names_pass_through():
    @headroom
    def pair(a: int, *, b: int) -> tuple[int, int]:
        """Two."""
        return a, b

    assert pair(1, b=2) == (1, 2)
    assert (pair.__name__, pair.__doc__) == ("pair", "Two.")


def test_errors_pass_through():
    @headroom
    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()


def _from_depth(depth: int) -> float:
    """Seconds that a call of two levels takes on average, ``depth`` frames further down."""
    if depth:
        return _from_depth(depth - 1)

    def inner() -> None:
        return None

    def outer() -> None:
        inner()

    fastest = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(200):
            outer()
        fastest = min(fastest, (time.perf_counter() - begin) / 200)
    return fastest


def test_no_depth_of_calls_is_slow():
    spread = headroom(lambda: [_from_depth(depth) for depth in range(150)])()
    assert max(spread) < 5 * min(spread)
