"""All errors of taskmap. Each says what failed, where (the user's line), why, and what to do."""

from typing import TypeVar

from taskmap.ir.source import SourceLocation

_Error = TypeVar("_Error", bound="TaskmapError")


class TaskmapError(Exception):
    """Base of all errors that taskmap raises on purpose.

    what: what could not be done. where: a source location (shown with a caret) or words. why: the reason. hint: what
    to do about it. Only `what` is needed. The text has a fixed form, a header and indented parts in that order:

        taskmap: cannot compile kernel 'copy'
          kernels.py:14:  for i, j in spatial(8, 8).on(thread):
                                      ^^^^^^^^^^^^^
          the mapping has 64 workers, but the block has 128 threads.
          Use 64 threads, or repeat the mapping.
    """

    def __init__(
        self,
        what: str,
        *,
        where: SourceLocation | str | None = None,
        why: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    def at(self: _Error, where: SourceLocation | str | None) -> _Error:
        """This error, placed at `where` unless it already has a place: the innermost place is the best one."""
        if self.where is None:
            self.where = where
        return self

    def __str__(self) -> str:
        where = self.where.snippet() if isinstance(self.where, SourceLocation) else self.where
        where = None if where and where in self.what else where  # it is said already
        parts = [part for part in (where, self.why, self.hint) if part]
        body = [f"  {line}" for part in parts for line in part.splitlines()]
        return "\n".join([f"taskmap: {self.what}", *body])


class MappingError(TaskmapError):
    """A task mapping is malformed, or lacks what was asked of it (an inverse, equal task counts, a shape)."""


class LayoutError(TaskmapError):
    """A layout is malformed or cannot be converted, composed or inverted as asked."""


class TypeMismatchError(TaskmapError):
    """Operands, a store or a call disagree about dtype, rank or scope."""


class IndexOutOfRangeError(TaskmapError, IndexError):
    """An index, worker, slot or axis lies outside its range."""


class ScriptError(TaskmapError):
    """A kernel written in script uses something that script does not have, or uses it wrongly."""


class VerifyError(TaskmapError):
    """A module of tensor IR breaks a rule of the verifier."""


class LoweringError(TaskmapError):
    """A pass from IR to IR met something that it cannot lower."""


class GraphError(TaskmapError):
    """A graph is malformed: a value without a producer, a shape or dtype that does not follow from its operands."""


class ImportGraphError(TaskmapError):
    """A foreign graph (FX, ONNX) cannot be read."""


class FusionError(TaskmapError):
    """A fused group breaks a rule of fusion."""


class ScheduleError(TaskmapError):
    """A scheduling primitive is used illegally, or a config is not valid for its task."""


class CodegenError(TaskmapError):
    """A lowered module cannot be written as source for the target."""


class CompilerNotFoundError(TaskmapError):
    """No compiler for the target's source was found."""


class CompilerFailedError(TaskmapError):
    """The compiler was found, but it refused the source, crashed, or ran out of time."""


class WrongCompilerError(CompilerFailedError):
    """The compiler makes wrong code of kernels whose right results are known, with all flags that were tried."""


class KernelResourceError(CompilerFailedError):
    """A kernel compiled, but not as it was meant: its registers spill, or its tensor instructions run one by one."""


class DeviceError(TaskmapError):
    """A GPU, its driver, or a kernel that runs on it failed."""


class NoDeviceError(DeviceError):
    """There is no driver, no GPU, or none that can run what is asked."""


class DeviceMemoryError(DeviceError):
    """A GPU has no memory left."""


class KernelStoreError(TaskmapError):
    """The kernel store cannot be used: not writable, full, or not private to this user."""


class UnsupportedError(TaskmapError):
    """An operator, dtype, layout or device that taskmap does not compile."""


class InvalidOptionError(TaskmapError):
    """An option or mode that does not exist, or a value that it does not take."""


class InputError(TaskmapError):
    """The inputs of a compiled call do not fit what it was compiled for."""


class ArchiveError(TaskmapError):
    """A file is no archive of a compiled model, a damaged one, or one for another machine or version."""


class SimulationError(TaskmapError):
    """A kernel did something in the simulator that no kernel may do on a GPU: a race, an access out of bounds, ..."""


class TuningError(TaskmapError):
    """The tuning cache cannot be used, or a record that it should take is malformed."""
