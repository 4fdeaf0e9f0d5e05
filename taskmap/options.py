"""The user's options: one frozen record, passed down from the entry point; nothing is global."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING

from taskmap.ir.errors import InvalidOptionError
from taskmap.ir.features import FEATURES, SIMULATED_ISA, read_features
from taskmap.ir.target import GPUS, GpuTarget, cuda_target, gpu_named
from taskmap.ir.util.lazy import lazily

# Most compilations are given no strategies.
if TYPE_CHECKING:
    from taskmap.schedules.strategies.offers import offers_of as _offers_of
else:
    _offers_of = lazily("taskmap.schedules.strategies.offers", "offers_of")

# The modes of torch.compile. All are accepted, so that a script need not change with its backend. Modes that mean CUDA
# graphs to PyTorch mean them here, and modes that mean measuring do, too.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
GRAPH_MODES = ("reduce-overhead", "max-autotune")
TUNE_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
TUNE_SECONDS = 60.0
TARGETS = ("cpu", "cuda", "cuda-sim")
ISAS = ("avx2", "avx512", "generic")
MOST_THREADS = 1024  # if the system refuses a thread, OpenMP's runtime ends the process


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one compilation, as in `torch.compile(model, backend="taskmap", options={"isa": "avx2"})`.

    target: the kind of device to compile for: cpu, cuda, or cuda-sim, which runs a GPU's kernels on the CPU; None
        takes the device of the model's tensors.
    gpu: the GPU to compile for, by name ("H200") or instruction set ("sm_80"); None takes the GPU of this machine, and
        for cuda-sim an A100.
    cuda_graphs: replay a graph's launches as one CUDA graph; the mode "reduce-overhead" sets it.
    isa: the vector instructions to use; None asks the host. "amx-sim" runs products of tiles on a software model of
        AMX, which checks their use.
    features: more CPU features to use, as in "avx512_bf16, avx512_vnni", or "none"; None follows the environment
        variable TASKMAP_FEATURES, else takes those of the host if ``isa`` is None, too.
    threads: threads per kernel; None follows `torch.set_num_threads`.
    dump_dir: a folder that receives every stage as a numbered file.
    freeze: parameters are constants when grad is off, folded and packed once, and refreshed when they change.
    check_frozen: check the memory of frozen parameters at every call. False checks only their addresses and version
        counters: writes that PyTorch does not count (`parameter.data`, numpy views, other processes) go unnoticed.
    winograd: compute convolutions of 3x3 and stride 1 with constant weights by Winograd's minimal filtering, on CPUs,
        where that is faster by the cost model: with fewer products, weights that take more memory, and a rounding
        error of up to 4 times that of a direct convolution. A value that is not finite spreads over its tile.
    fast_math: allow arithmetic that does not follow IEEE 754.
    cache_dir: the folder of the kernel store; None is TASKMAP_CACHE_DIR if set, else the user's cache folder.
    verify_passes: verify the IR, and the conditions of every pass, between all passes.
    profile: measure each kernel, for `taskmap.explain`.
    tuned: use the configurations that the tuning cache has for this machine; the environment variable
        TASKMAP_TUNING=off turns them off for all compilations of a process.
    tf32: let tensor cores multiply f32, with operands rounded to 10 bits of mantissa, on GPUs that have them; None
        follows PyTorch's setting, which is off by default: torch.backends.cuda.matmul.fp32_precision, or
        torch.set_float32_matmul_precision.
    dependent_launch: let a kernel start while the one before it ends (CUDA's programmatic dependent launch), on Hopper
        and later GPUs. Not measured yet.
    strategies: schedules of your own, as a list of finished trees (`taskmap.decompose`) or of functions
        ``def s(m, n, k, batch=(), a=f32, b=f32, c=f32)`` that return one, of whose arguments those after k may be left
        out. The first that fits a matrix product makes its kernel, with the operators around it fused. Trees of other
        stages, such as softmax of rows, make the kernels of groups with the same expressions.
    tune_seconds: how long a compilation may measure configurations of operators that are not in the tuning cache;
        None measures nothing. The modes "max-autotune" and "max-autotune-no-cudagraphs" set it to 60.

    Raises InvalidOptionError for a value of the wrong type or out of range.
    """

    target: str | None = None
    gpu: str | None = None
    isa: str | None = None
    threads: int | None = None
    dump_dir: str | None = None
    freeze: bool = True
    check_frozen: bool = True
    fast_math: bool = False
    cache_dir: str | None = None
    verify_passes: bool = False
    profile: bool = False
    cuda_graphs: bool = False
    tuned: bool = True
    tune_seconds: float | None = None
    tf32: bool | None = None
    dependent_launch: bool = False
    features: str | None = None
    winograd: bool = True
    strategies: Sequence[object] = ()

    if not TYPE_CHECKING:  # type checkers know the names from the fields

        def __new__(cls, *args: object, **options: object) -> "Options":  # noqa: PYI034  Self needs Python 3.11
            """Raises InvalidOptionError for an unknown option, before the record is filled."""
            names = tuple(field.name for field in fields(cls))
            _check_names(options, names)
            if len(args) > len(names):
                raise InvalidOptionError(f"Options has {len(names)} fields, but {len(args)} values were given")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, (accepts, wanted) in _RULES.items():
            value = getattr(self, name)
            if not accepts(value):
                raise InvalidOptionError(f"option {name!r} cannot be {value!r}", hint=f"It takes {wanted}.")
        if self.strategies:
            _offers_of(self.strategies)
        object.__setattr__(self, "strategies", tuple(self.strategies))

    @property
    def code_isa(self) -> str | None:
        """The instruction set of generated code: ``isa``, without the software model of tiles."""
        return None if self.isa == SIMULATED_ISA else self.isa

    @classmethod
    def from_user(cls, mode: str | None = None, options: "Mapping[str, object] | Options | None" = None) -> "Options":
        """The options for the `mode` and `options` given to torch.compile; of a record, the fields that differ from
        the defaults count as given.

        Raises InvalidOptionError for an unknown mode or key (naming the nearest valid one) and for a value that its key
        does not accept.
        """
        if mode is not None and mode not in MODES:
            raise InvalidOptionError(f"unknown mode {mode!r}", hint=_choices("modes", mode, MODES))
        if isinstance(options, Options):
            by_user: Mapping[str, object] = {f.name: getattr(options, f.name) for f in fields(cls)}
            options = {f.name: by_user[f.name] for f in fields(cls) if by_user[f.name] != f.default}
        by_mode = {"cuda_graphs": mode in GRAPH_MODES, "tune_seconds": TUNE_SECONDS if mode in TUNE_MODES else None}
        if options is None:
            options = {}
        if not isinstance(options, Mapping):
            kind = type(options).__name__
            raise InvalidOptionError(f"options cannot be a {kind}", hint='Pass a dictionary, as in {"isa": "avx2"}.')
        _check_names(options, tuple(field.name for field in fields(cls)))
        # __post_init__ checks the values, which a type checker cannot see.
        return cls(**{**by_mode, **{key: _plain(value) for key, value in options.items()}})  # type: ignore[arg-type]


def _check_names(given: Iterable[str], names: tuple[str, ...]) -> None:
    for key in given:
        if key not in names:
            raise InvalidOptionError(f"unknown option {key!r}", hint=_choices("options", key, names))


def _plain(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _choices(kind: str, given: object, valid: tuple[str, ...]) -> str:
    nearest = get_close_matches(str(given), valid, n=1)
    guess = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return f"{guess}Valid {kind}: {', '.join(valid)}."


def _is_folder(value: object) -> bool:
    return value is None or (isinstance(value, str) and value != "" and "\0" not in value)


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_THREADS)


def _is_seconds(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_gpu(value: object) -> bool:
    if value is None:
        return True
    try:
        named_gpu(str(value))
    except InvalidOptionError:
        return False
    return isinstance(value, str)


def _is_features(value: object) -> bool:
    if value is None:
        return True
    try:
        return isinstance(value, str) and read_features(value) is not None
    except InvalidOptionError:
        return False


def named_gpu(name: str) -> GpuTarget:
    """A GPU by its name or its instruction set. Raises InvalidOptionError."""
    return cuda_target(name) if name.startswith("sm_") else gpu_named(name)


def _is_one_of(*valid: str | None) -> Callable[[object], bool]:
    # Compared only with strings, because the == of other values, such as tensors, may not give a bool.
    return lambda value: (value is None or isinstance(value, str)) and value in valid


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "target": (_is_one_of(None, *TARGETS), "None, 'cpu', 'cuda' or 'cuda-sim'"),
    "gpu": (_is_gpu, f"None, an instruction set such as 'sm_80', or one of {', '.join(GPUS)}"),
    "isa": (_is_one_of(None, *ISAS, SIMULATED_ISA), "None, 'avx2', 'avx512', 'generic' or 'amx-sim'"),
    "features": (_is_features, f"None, 'none', or a list of {', '.join(FEATURES)}"),
    "threads": (_is_count, f"None or an integer of at least 1 and at most {MOST_THREADS}"),
    "dump_dir": (_is_folder, "None or a path"),
    "freeze": (_is_flag, "True or False"),
    "check_frozen": (_is_flag, "True or False"),
    "fast_math": (_is_flag, "True or False"),
    "winograd": (_is_flag, "True or False"),
    "cache_dir": (_is_folder, "None or a path"),
    "verify_passes": (_is_flag, "True or False"),
    "profile": (_is_flag, "True or False"),
    "cuda_graphs": (_is_flag, "True or False"),
    "tuned": (_is_flag, "True or False"),
    "tf32": (lambda value: value is None or _is_flag(value), "None, True or False"),
    "dependent_launch": (_is_flag, "True or False"),
    "strategies": (lambda value: isinstance(value, (list, tuple)), "a list of strategies"),
    "tune_seconds": (_is_seconds, "None or a number of seconds"),
}
