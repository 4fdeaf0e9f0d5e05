"""Options are accepted or refused at the entry point, never further inside."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from taskmap import Options
from taskmap.errors import InvalidOptionError, TaskmapError


def test_defaults() -> None:
    assert Options.from_user() == Options() == Options.from_user(mode=None, options={})
    assert Options().freeze
    assert hash(Options()) == hash(Options())


def test_values_are_taken_over(tmp_path: Path) -> None:
    options = Options.from_user("max-autotune", {"isa": "avx2", "threads": 1, "dump_dir": tmp_path, "freeze": False})
    assert options == Options(
        isa="avx2", threads=1, dump_dir=str(tmp_path), freeze=False, cuda_graphs=True, tune_seconds=60.0
    )


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().threads = 2  # type: ignore[misc]


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_compile(mode: str | None) -> None:
    seconds = 60.0 if mode is not None and mode.startswith("max-autotune") else None
    assert Options.from_user(mode) == Options(
        cuda_graphs=mode in ("reduce-overhead", "max-autotune"), tune_seconds=seconds
    )
    assert Options.from_user(mode, {"cuda_graphs": False, "tune_seconds": None}) == Options()


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("max-autotun", None, r"unknown mode 'max-autotun'\n  Did you mean 'max-autotune'\? Valid modes: default"),
        (
            None,
            {"thread": 1},
            r"unknown option 'thread'\n  Did you mean 'threads'\? Valid options: target, gpu, isa, threads",
        ),
        (None, {"xyzzy": 1}, r"unknown option 'xyzzy'\n  Valid options: target"),
        (None, {3: 1}, "unknown option 3"),
        (None, ["isa"], "options cannot be a list"),
        (None, {"target": "gpu"}, r"option 'target' cannot be 'gpu'\n  It takes None, 'cpu', 'cuda' or 'cuda-sim'\."),
        (
            None,
            {"gpu": "sm_70"},
            r"option 'gpu' cannot be 'sm_70'\n  It takes None, an instruction set such as 'sm_80'",
        ),
        (None, {"gpu": "H300"}, "or one of T4, A100"),
        (None, {"gpu": 80}, "option 'gpu' cannot be 80"),
        (None, {"cuda_graphs": 1}, "It takes True or False"),
        (None, {"tuned": 1}, "It takes True or False"),
        (None, {"tune_seconds": -1.0}, "a number of seconds"),
        (None, {"tune_seconds": float("nan")}, "a number of seconds"),
        (None, {"tune_seconds": "60"}, "a number of seconds"),
        (None, {"isa": "avx"}, "It takes None, 'avx2', 'avx512', 'generic' or 'amx-sim'"),
        (None, {"isa": 512}, "option 'isa' cannot be 512"),
        (None, {"threads": 0}, "at least 1"),
        (None, {"threads": True}, "option 'threads' cannot be True"),
        (None, {"threads": 2.0}, "at least 1"),
        (None, {"freeze": 1}, "It takes True or False"),
        (None, {"fast_math": "yes"}, "It takes True or False"),
        (None, {"verify_passes": None}, "It takes True or False"),
        (None, {"profile": 0}, "It takes True or False"),
        (None, {"cache_dir": ""}, "It takes None or a path"),
        (None, {"dump_dir": 3}, "It takes None or a path"),
        (None, {"dump_dir": "a\0b"}, "It takes None or a path"),
    ],
)
def test_what_is_wrong_is_refused(mode: str | None, options: object, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        Options.from_user(mode, options)  # type: ignore[arg-type]


def test_the_constructor_refuses_too() -> None:
    with pytest.raises(TaskmapError, match="threads"):
        Options(threads=-1)


def test_a_typo_in_a_record_of_options_is_one_of_ours() -> None:
    with pytest.raises(InvalidOptionError, match=r"unknown option 'thread'\n  Did you mean 'threads'\?"):
        Options(thread=2)  # type: ignore[call-arg]
    with pytest.raises(InvalidOptionError, match=r"Options has \d+ fields, but 99 values"):
        Options(*range(99))  # pyright: ignore[reportArgumentType]


def test_a_record_of_options_can_be_given_to_torch_compile() -> None:
    """A typo is then reported at its own line, and not at the first call."""
    given = Options(threads=2, freeze=False)
    assert Options.from_user(None, given) == given
    assert Options.from_user("reduce-overhead", given) == Options(threads=2, freeze=False, cuda_graphs=True)


def test_options_are_copied_and_pickled() -> None:
    options = Options(threads=2)
    assert pickle.loads(pickle.dumps(options)) == copy.deepcopy(options) == replace(options) == options
