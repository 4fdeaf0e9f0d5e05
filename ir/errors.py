"""All errors of taskmap. Each says what failed, where (the user's line), why, and how to fix it."""

from typing import TypeVar

from taskmap.ir.source import SourceLocation

_Error = TypeVar("_Error", bound="TaskmapError")


class TaskmapError(Exception):
    """Base of all errors that taskmap raises on purpose.

    what: the action that failed. where: a source location (shown with a caret) or words. why: the reason. hint: a way
    to fix it. Only `what` is required. The text has a fixed form, a header and indented parts in that order:

        taskmap: cannot compile kernel 'copy'
          kernels.py:14:  for i, j in spatial(8, 8).on(thread):
                                      ^^^^^^^^^^^^^
          the mapping has 64 workers, but the block has 128 threads.
          Use 64 threads, or repeat the mapping.
    """

    def __init__(
        self, what: str, *, where: SourceLocation | str | None = None, why: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    def at(self: _Error, where: SourceLocation | str | None) -> _Error:
        """This error, located at `where` unless it already has a location: the innermost location is the best."""
        if self.where is None:
            self.where = where
        return self

    def __str__(self) -> str:
        where = self.where.snippet() if isinstance(self.where, SourceLocation) else self.where
        where = None if where and where in self.what else where  # `what` names it already
        parts = [part for part in (where, self.why, self.hint) if part]
        body = [f"  {line}" for part in parts for line in part.splitlines()]
        return "\n".join([f"taskmap: {self.what}", *body])


class MappingError(TaskmapError):
    """A task mapping is malformed, or lacks the requested property (an inverse, equal task counts, a shape)."""


class LayoutError(TaskmapError):
    """A layout is malformed, or cannot be converted, composed or inverted as requested."""


class TypeMismatchError(TaskmapError):
    """Operands, a store or a call disagree about dtype, rank or scope."""


class IndexOutOfRangeError(TaskmapError, IndexError):
    """An index, worker, slot or axis lies outside its range."""


class ScriptError(TaskmapError):
    """A kernel written in script uses unsupported Python, or uses script incorrectly."""


class VerifyError(TaskmapError):
    """A kernel violates a rule of the verifier."""


class LoweringError(TaskmapError):
    """A lowering pass cannot lower a construct."""


class SelectionLimitError(LoweringError):
    """A search for instructions passed a limit of nodes, rounds or time."""


class GraphError(TaskmapError):
    """A graph is malformed: a value without a producer, a shape or dtype that does not follow from its operands."""


class ImportGraphError(TaskmapError):
    """A foreign graph (FX, ONNX) cannot be read."""


class FusionError(TaskmapError):
    """A fused group violates a rule of fusion."""


class ScheduleError(TaskmapError):
    """A scheduling primitive is used illegally, or a config is not valid for its task."""


class StrategyMisfitError(ScheduleError):
    """A strategy does not fit a group of operators."""


class CodegenError(TaskmapError):
    """A lowered kernel cannot be written as source for the target."""


class CompilerNotFoundError(TaskmapError):
    """No compiler for the target's source was found."""


class CompilerFailedError(TaskmapError):
    """The compiler was found, but it rejected the source, crashed, or ran out of time."""


class WrongCompilerError(CompilerFailedError):
    """The compiler miscompiles kernels with known results, with all flags that were tried."""


class KernelResourceError(CompilerFailedError):
    """A kernel compiled, but badly: its registers spill, or its tensor instructions are serialised."""


class DeviceError(TaskmapError):
    """A GPU, its driver, or a kernel that runs on it failed."""


class NoDeviceError(DeviceError):
    """There is no driver, no GPU, or no GPU that supports the request."""


class DeviceMemoryError(DeviceError):
    """A GPU is out of memory."""


class KernelStoreError(TaskmapError):
    """The kernel store cannot be used: not writable, full, or not private to this user."""


class UnsupportedError(TaskmapError):
    """An operator, dtype, layout or device that taskmap does not compile."""


class InvalidOptionError(TaskmapError):
    """An option or mode does not exist, or does not take the given value."""


class InputError(TaskmapError):
    """The inputs of a compiled call do not match those it was compiled for."""


class ArchiveError(TaskmapError):
    """The file is not an archive, is damaged, or was built for another machine or version."""


class SimulationError(TaskmapError):
    """A kernel did something in the simulator that is an error on any GPU: a race, an access out of bounds, ..."""


class TuningError(TaskmapError):
    """The tuning cache cannot be used, or a record for it is malformed."""
