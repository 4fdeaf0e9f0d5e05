"""Functions with stack headroom behave as without it."""

import pytest

from taskmap.util.stack_headroom import headroom


def test_arguments_results_and_names_pass_through() -> None:
    @headroom
    def pair(a: int, *, b: int) -> tuple[int, int]:
        """Two."""
        return a, b

    assert pair(1, b=2) == (1, 2)
    assert (pair.__name__, pair.__doc__) == ("pair", "Two.")


def test_errors_pass_through() -> None:
    @headroom
    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
