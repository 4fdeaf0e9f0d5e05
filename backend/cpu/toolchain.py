"""The C compiler: its discovery, its identity, and the commands that turn C into a shared object."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from taskmap.backend.cpu.host import Isa, detect_host, parse_isa
from taskmap.backend.store.key import KernelKind
from taskmap.ir.errors import CompilerFailedError, CompilerNotFoundError, UnsupportedError

Family = Literal["gcc", "clang"]

_log = logging.getLogger(__name__)

_INSTALL = "Install a C compiler (Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc), or set TASKMAP_CC to one."

# No -mtune=native: it changed no measured kernel, and would tie a stored kernel to one model of CPU.
_ISA_FLAGS: dict[Isa, tuple[str, ...]] = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",  # with the default of 256, element-wise loops ran 10 % slower
    ),
}
_FEATURE_FLAGS = {
    "avx_vnni": "-mavxvnni",
    "avx512_vnni": "-mavx512vnni",
    "avx512_bf16": "-mavx512bf16",
    "avx512vbmi": "-mavx512vbmi",
    "amx_tile": "-mamx-tile",
    "amx_int8": "-mamx-int8",
    "amx_bf16": "-mamx-bf16",
}
"""The flags of kernels with the instructions of a feature; others are compiled without, so a feature changes none of
them."""
# No -fwrapv: it stops the vectorisation of loops over int (4 times slower), so generated code must compute integers
# that may wrap as unsigned.
_COMPILE_FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-fno-math-errno",  # nobody reads errno after a kernel, and sqrt becomes one instruction
    "-fno-trapping-math",  # nobody reads the floating-point exception flags; both sides of a select may be computed
    "-fno-strict-aliasing",  # generated code reads arrays of float through vector types
    "-fno-semantic-interposition",  # a kernel is never replaced at load time, so it may be inlined
    "-Wall",
    "-Wno-unused",  # not every unit uses every helper of its prelude
)
# Register tiles are already in their final form: gcc takes twice as long to look for loops that it could improve.
_SPELLED_OUT: dict[Family, tuple[str, ...]] = {
    "gcc": (
        *("-O1", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fexpensive-optimizations", "-fcse-follow-jumps"),
        *("-frerun-cse-after-loop", "-fschedule-insns2", "-fpeephole2", "-freorder-blocks", "-fcaller-saves"),
        "-freorder-blocks-algorithm=stc",
        "-fno-tree-bit-ccp",  # an eighth of the time, for alignments that aligned and unaligned moves do not need
    ),
    "clang": (),
}
_ONCE = "-O1"
"""For kernels that run once. Its passes are among those of the other kernels, which a compiler's trial tries."""
_USUAL = KernelKind()
# Parallel loops are bound to the library of cpu/team.py.
_LINK_FLAGS = ("-shared", "-Wl,-z,noexecstack", "-lm")
_BARE: dict[Family, tuple[str, ...]] = {"gcc": ("-nostdlib", "-lgcc"), "clang": ()}
"""For kernels, which call at most functions of libm and libgcc, and copies, which every process has: to read the C
library and its start files takes the linker longer than the kernels. Clang may come without libgcc."""
# Variables that would add headers, libraries or programs unknown to the kernel key.
_DROPPED_VARIABLES = frozenset({"CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH"})


@dataclass(frozen=True, slots=True)
class Safer:
    """Flags appended to all others because the compiler is wrong without them: for kernels that compute with integers,
    and for those that do not."""

    integers: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler with everything that determines its output for a source.

    command: program and leading arguments. identity: version and target, whatever the program's path. fast_math: trade
    IEEE arithmetic for speed. contract: any a * b + c may be one fused operation; without it, only those that the C
    writes as such, so one operator's result is rounded before another adds to it. timeout: seconds that one compilation
    may take. safer: see taskmap.trust, which tests a compiler before its first use. hosted: for text that calls the C
    library.
    """

    command: tuple[str, ...]
    identity: str
    family: Family
    isa: Isa
    fast_math: bool = False
    contract: bool = False
    timeout: float = 300.0
    safer: Safer = Safer()
    hosted: bool = False

    def compile_flags(self, kind: KernelKind) -> tuple[str, ...]:
        """The flags for kernels of a kind. Sizes in floating point follow IEEE 754 in any case."""
        fast_math, contract = (False, False) if kind.float_sizes else (self.fast_math, self.contract)
        return (
            *self.command[1:],
            *_COMPILE_FLAGS,
            *((_ONCE,) if kind.once else _SPELLED_OUT[self.family] if kind.spelled_out else ()),
            *_ISA_FLAGS[self.isa],
            *(_FEATURE_FLAGS[name] for name in kind.features if name in _FEATURE_FLAGS),
            "-ffp-contract=fast" if contract or fast_math else "-ffp-contract=off",
            *(("-ffast-math",) if fast_math else ()),
            *self._cautious(kind),
        )

    def _cautious(self, kind: KernelKind) -> tuple[str, ...]:
        """Of ``safer``. Kernels that run once share the flags of one side if the other has none, and so their units:
        to compile them is all that they cost."""
        integers, floats = self.safer.integers, self.safer.floats
        if kind.once and not (integers and floats):
            return integers or floats
        return integers if kind.integers else floats

    def separates(self, kind: KernelKind) -> bool:
        """True if kernels of this kind that compute with integers need other flags than those that do not."""
        with_integers, without = (replace(kind, integers=integers) for integers in (True, False))
        return self._cautious(with_integers) != self._cautious(without)

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Link flags without -ffast-math, with which gcc links start-up code that flushes denormals in the whole
        process."""
        return (*self.command[1:], *self._libraries)

    @property
    def _libraries(self) -> tuple[str, ...]:
        return (*_LINK_FLAGS, *(() if self.hosted else _BARE[self.family]))

    def flags_for(self, kind: KernelKind) -> tuple[str, ...]:
        """Every argument that can change the binary of a kernel of this kind, in order, without paths."""
        return (*self.compile_flags(kind), *self.link_flags)

    @property
    def flags(self) -> tuple[str, ...]:
        """Every argument that can change any kernel."""
        return (*self.flags_for(_USUAL), *_SPELLED_OUT[self.family], _ONCE, *self.safer.integers)

    def compile_command(self, output: str, kind: KernelKind = _USUAL) -> list[str]:
        """The argument list that compiles C from standard input into the object file `output`."""
        return [self.command[0], *self.compile_flags(kind), "-c", "-x", "c", "-", "-o", output]

    def link_command(self, compiled: str | Sequence[str], output: str) -> list[str]:
        """The argument list that links the object files `compiled` into the shared object `output`."""
        return [
            self.command[0],
            *([compiled] if isinstance(compiled, str) else compiled),
            *self.link_flags,
            "-o",
            output,
        ]

    def build_commands(self, output: str, kind: KernelKind) -> list[list[str]]:
        """The argument lists that build C from standard input into the shared object `output`, in order.

        One is enough unless flags of fast math, which do not belong to linking, are among the compiler's.
        """
        if self.fast_math:
            compiled = f"{output}.o"
            return [self.compile_command(compiled, kind), self.link_command(compiled, output)]
        flags = self.compile_flags(kind)
        return [[self.command[0], *flags, "-x", "c", "-", "-x", "none", *self._libraries, "-o", output]]

    def environment(self, scratch: str) -> dict[str, str]:
        """The compiler's environment: messages in English, temporary files in `scratch`."""
        kept = {name: value for name, value in os.environ.items() if name not in _DROPPED_VARIABLES}
        return {**kept, "LC_ALL": "C", "TMPDIR": scratch}


def find_toolchain(
    *,
    isa: str | None = None,
    fast_math: bool = False,
    contract: bool = False,
    timeout: float = 300.0,
    environ: Mapping[str, str] | None = None,
) -> Toolchain:
    """The first compiler of $TASKMAP_CC, $CC, cc, gcc, clang, set up for `isa` (default: the host's).

    A TASKMAP_CC that cannot be run is an error. A CC that cannot be run is skipped with one logged warning, because it
    may be meant for other programs. Raises CompilerNotFoundError, CompilerFailedError if the compiler does not report
    its identity, and UnsupportedError if the host does not support `isa`.
    """
    host = detect_host()
    chosen = host.isa if isa is None else parse_isa(isa)
    if not host.supports(chosen):
        raise UnsupportedError(
            f"cannot compile for {chosen}",
            why=f"this CPU ({host.model}) does not support {chosen}.",
            hint=f"Leave the instruction set to detection, or use {host.isa}.",
        )
    command = _find_command(os.environ if environ is None else environ)
    family, identity = _identify(command, fingerprint(command[0]))
    return Toolchain(command, identity, family, chosen, fast_math, contract, timeout)


def _find_command(environ: Mapping[str, str]) -> tuple[str, ...]:
    search = environ.get("PATH", os.defpath)
    wanted = environ.get("TASKMAP_CC", "").strip()
    if wanted:
        return _chosen_command(wanted, search)
    theirs = environ.get("CC", "").strip()
    for candidate in (theirs, "cc", "gcc", "clang"):
        try:
            found = _runnable(candidate, search)
        except ValueError:
            continue
        if found is not None:
            if theirs and candidate != theirs:
                _warn_of_cc(theirs, found[0])
            return found
    raise CompilerNotFoundError(
        "no C compiler found", why=f"none of cc, gcc and clang is in PATH ({search}).", hint=_INSTALL
    )


def _chosen_command(wanted: str, search: str) -> tuple[str, ...]:
    """The command in TASKMAP_CC."""
    try:
        found = _runnable(wanted, search)
    except ValueError as error:
        raise CompilerNotFoundError(
            f"cannot read the command {wanted!r}",
            where="environment variable TASKMAP_CC",
            why=f"{error}.",
            hint="Write it as in a shell, a path with spaces in quotes.",
        ) from error
    if found is not None:
        return found
    program = shlex.split(wanted)[0]
    if os.path.dirname(program):
        why = "there is no such file." if not os.path.exists(program) else "the file is not a program that you may run."
    else:
        why = f"no folder of PATH ({search}) has a program of that name."
    other = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name, path=search))), None)
    raise CompilerNotFoundError(
        f"cannot run the C compiler {program!r}",
        where="environment variable TASKMAP_CC",
        why=why,
        hint=f"Correct TASKMAP_CC, or unset it: {other} is here." if other else f"Correct TASKMAP_CC. {_INSTALL}",
    )


def _runnable(command: str, search: str) -> tuple[str, ...] | None:
    """A shell's command with its program's path, or None if there is none; ValueError for an open quote."""
    program, *arguments = shlex.split(command) or [""]
    path = shutil.which(program, path=search) if program else None
    return None if path is None else (os.path.abspath(path), *arguments)


@lru_cache(maxsize=8)
def _warn_of_cc(theirs: str, found: str) -> None:
    _log.warning(
        "taskmap cannot run the C compiler that the environment variable CC names (%s); it uses %s", theirs, found
    )


def fingerprint(program: str) -> tuple[str, int, int]:
    """File facts that change when another compiler is installed under the same name."""
    real = os.path.realpath(program)
    status = os.stat(real)
    return real, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=32)
def _identify(command: tuple[str, ...], _fingerprint: tuple[str, int, int]) -> tuple[Family, str]:
    """Family and identity of a compiler from `cc -v`, cached because the call costs some milliseconds."""
    try:
        answer = subprocess.run(
            [*command, "-v"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unknown_compiler(command, str(error)) from error
    text = (answer.stderr + answer.stdout).decode(errors="replace")
    version = re.search(r"^.*\bversion \d.*$", text, re.MULTILINE)
    target = re.search(r"^Target: (\S+)", text, re.MULTILINE)
    if answer.returncode != 0 or version is None or target is None:
        raise _unknown_compiler(command, f"it answered (exit status {answer.returncode}): {text.strip()[:300]}")
    family: Family = "clang" if "clang" in version.group() else "gcc"
    return family, f"{version.group().strip()}; {target.group(1)}"


def _unknown_compiler(command: tuple[str, ...], why: str) -> CompilerFailedError:
    return CompilerFailedError(
        "the C compiler does not report its version",
        where=shlex.join([*command, "-v"]),
        why=why,
        hint="Set TASKMAP_CC to a working gcc or clang.",
    )
