"""The garbage collector pauses while a graph is compiled, and its state is restored."""

import gc

import pytest

from taskmap.util.gc_pause import collector_frozen, collector_paused


def test_the_collector_rests_inside_and_works_after() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_turns_it_on_again() -> None:
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pauses_nest() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_a_command_makes_is_left_out_of_later_collections() -> None:
    frozen = gc.get_freeze_count()
    try:
        with collector_frozen():
            made = [[number] for number in range(100)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(made)
        assert not any(item is made for item in gc.get_objects())
    finally:
        gc.unfreeze()
