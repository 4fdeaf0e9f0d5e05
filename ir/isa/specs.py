"""Specs: the operation of one instruction, independent of its notation and of the placement of its operands.

    values        MatMulSpec LaneDotSpec ConvertSpec ApproximationSpec ShuffleSpec VoteSpec WarpReduceSpec AtomicSpec
    data          MoveSpec CachedMoveSpec MatrixMoveSpec FragmentMoveSpec TileMoveSpec TileZeroSpec AsyncCopySpec
                  BulkCopySpec TensorMoveSpec PrefetchSpec
    order         BarrierSpec MbarrierSpec FenceSpec GroupSpec GridSpec
    the rest      DescriptorSpec PeerSpec RegisterLimitSpec RegisterHoldSpec TileStateSpec MicroKernelSpec

The values and data specs have a meaning in numpy (``taskmap.ir.interp.instructions``). Source for the GPU instructions:
NVIDIA, "Parallel Thread Execution ISA", version 9.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskmap.ir.types import DType


@dataclass(frozen=True, slots=True)
class MatMulSpec:
    """c[i, j] += sum over k of a[i, k] * b[k, j], for matrices of m×n, m×k and k×n elements of these types."""

    m: int
    n: int
    k: int
    a: DType
    b: DType
    c: DType

    def __str__(self) -> str:
        return f"matmul {self.m}×{self.n}×{self.k}, {self.a} × {self.b} → {self.c}"


@dataclass(frozen=True, slots=True)
class LaneDotSpec:
    """c[j] += sum over k of a[j, k] * b[j, k] for the n lanes of a vector, with elements of these types: a product of
    two vectors, where that of a matrix has one element of a for all lanes."""

    n: int
    k: int
    a: DType
    b: DType
    c: DType

    def __str__(self) -> str:
        return f"dot products of {self.k} in each of {self.n} lanes, {self.a} × {self.b} → {self.c}"


@dataclass(frozen=True, slots=True)
class MoveSpec:
    """n neighbouring elements copied between memory and registers, in either direction."""

    n: int
    dtype: DType

    def __str__(self) -> str:
        return f"move of {self.n} × {self.dtype}"


@dataclass(frozen=True, slots=True)
class ConvertSpec:
    """One value rounded to the nearest value of ``to``; ``ties`` breaks ties to "even" or "away" from 0."""

    of: DType
    to: DType
    ties: str = "even"

    def __str__(self) -> str:
        return f"conversion of {self.of} to {self.to}, ties to {self.ties}"


@dataclass(frozen=True, slots=True)
class ApproximationSpec:
    """A function of ``taskmap.ir.functions`` of one f32, with a relative error of at most ``error``. Subnormal
    arguments and results count as 0."""

    function: str
    error: float

    def __str__(self) -> str:
        return f"{self.function}, to a relative error of {self.error:.1e}, without subnormal numbers"


@dataclass(frozen=True, slots=True)
class CachedMoveSpec:
    """Neighbouring elements copied between global memory and registers, with a cache hint.

    cache: "nc" read-only data, "no_allocate" not kept in L1, "nc_no_allocate" both, "cs" likely used once, "cg" in L2
    only, "wt" written through L2. store: from registers to memory.
    """

    cache: str
    store: bool = False

    def __str__(self) -> str:
        return f"{'store' if self.store else 'load'} of neighbours, cached as {self.cache}"


@dataclass(frozen=True, slots=True)
class MatrixMoveSpec:
    """``count`` matrices of 8 rows of 16 bytes copied between shared memory and the registers of a warp.

    bytes: of an element. transposed: the registers hold each matrix transposed. store: from registers to memory. The
    address of lane 8·i + r points at row r of matrix i.
    """

    count: int
    bytes: int
    transposed: bool = False
    store: bool = False

    @property
    def columns(self) -> int:
        """Elements in a row of a matrix."""
        return 16 // self.bytes

    def __str__(self) -> str:
        kind = "store" if self.store else "load"
        by = f"{self.count} matrices of 8×{self.columns} elements of {self.bytes} bytes"
        return f"{kind} of {by}{', transposed' if self.transposed else ''}"


@dataclass(frozen=True, slots=True)
class FragmentMoveSpec:
    """A matrix with rows (or columns) a stride apart, copied between memory and an opaque fragment of a warp.

    operand: "a" of m×k, "b" of k×n, "c" of m×n elements. store: from the fragment to memory.
    """

    operand: str
    m: int
    n: int
    k: int
    dtype: DType
    store: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return {"a": (self.m, self.k), "b": (self.k, self.n), "c": (self.m, self.n)}[self.operand]

    def __str__(self) -> str:
        rows, columns = self.shape
        kind = "store" if self.store else "load"
        return f"{kind} of {self.operand}, {rows}×{columns} × {self.dtype}, of a matmul {self.m}×{self.n}×{self.k}"


@dataclass(frozen=True, slots=True)
class TileMoveSpec:
    """A tile register of ``rows`` × ``columns`` elements loaded from memory, or stored to it, where rows are a stride
    apart."""

    rows: int
    columns: int
    dtype: DType
    store: bool = False

    def __str__(self) -> str:
        return f"{'store' if self.store else 'load'} of a tile of {self.rows}×{self.columns} × {self.dtype}"


@dataclass(frozen=True, slots=True)
class TileZeroSpec:
    """A tile register of ``rows`` × ``columns`` elements set to zero."""

    rows: int
    columns: int
    dtype: DType

    def __str__(self) -> str:
        return f"zeros in a tile of {self.rows}×{self.columns} × {self.dtype}"


@dataclass(frozen=True, slots=True)
class AsyncCopySpec:
    """An asynchronous copy of ``bytes`` from global to shared memory; complete once its group has been waited for.

    zero_fill: an operand says how many of the bytes are copied; the rest become 0.
    """

    bytes: int
    zero_fill: bool = False

    def __str__(self) -> str:
        return f"asynchronous copy of {self.bytes} bytes to shared memory{', filled with 0' if self.zero_fill else ''}"


@dataclass(frozen=True, slots=True)
class BulkCopySpec:
    """A TMA copy of a multiple of 16 bytes. An mbarrier counts the bytes of a load; a store is waited for in a bulk
    group."""

    store: bool = False

    def __str__(self) -> str:
        return f"bulk copy {'from' if self.store else 'to'} shared memory"


@dataclass(frozen=True, slots=True)
class TensorMoveSpec:
    """A TMA copy of the box of a tensor map at given coordinates, innermost first.

    kind: "load" to shared memory, "store" from it, "add" from it to the values in global memory. Elements outside the
    tensor are loaded as 0 and not stored. In shared memory the box is dense, innermost dimension fastest, with its
    16-byte chunks swizzled as the map says. An mbarrier counts the bytes of a load; the others are waited for in a bulk
    group. multicast: the box, and the count, arrive at the same offset in every block of the cluster that a mask names.
    """

    rank: int
    kind: str = "load"
    multicast: bool = False

    def __str__(self) -> str:
        return f"{self.kind} of a box of a {self.rank}-d tensor{' in several blocks' if self.multicast else ''}"


@dataclass(frozen=True, slots=True)
class PrefetchSpec:
    """A hint that the memory behind an address will be used; level: "l1", "l2", "tensor_map"."""

    level: str

    def __str__(self) -> str:
        return f"prefetch to {self.level}"


@dataclass(frozen=True, slots=True)
class ShuffleSpec:
    """Each lane of a warp reads a value of another: the lane with a given number ("idx"), a number lower ("up") or
    higher ("down") by a given delta, or a number that differs by xor ("xor"), in segments of ``width`` lanes, a
    constant operand.

    A lane whose source lies outside its segment reads its own value.
    """

    how: str

    def __str__(self) -> str:
        return f"shuffle {self.how}"


@dataclass(frozen=True, slots=True)
class VoteSpec:
    """A vote of the lanes of a warp: "any", "all", "ballot" (bit i is lane i's vote), "elect" (true in one lane)."""

    how: str

    def __str__(self) -> str:
        return f"vote {self.how}"


@dataclass(frozen=True, slots=True)
class WarpReduceSpec:
    """One value of each lane reduced by add, min, max, and, or, xor; every lane gets the result."""

    op: str
    dtype: DType

    def __str__(self) -> str:
        return f"{self.op} of {self.dtype} over a warp"


@dataclass(frozen=True, slots=True)
class AtomicSpec:
    """memory = op(memory, value) as one relaxed atomic step; of several ``lanes``, each is atomic on its own.

    op: add, min, max, and, or, xor, exch, cas (stores the value if memory equals the expected one). returns: the
    previous value is returned. shared: the memory is shared, and the scope is the block; else global, and the GPU.
    """

    op: str
    dtype: DType
    lanes: int = 1
    returns: bool = True
    shared: bool = False

    def __str__(self) -> str:
        lanes = f"{self.lanes} × " if self.lanes > 1 else ""
        return f"atomic {self.op} of {lanes}{self.dtype} in {'shared' if self.shared else 'global'} memory"


@dataclass(frozen=True, slots=True)
class BarrierSpec:
    """A barrier. among: "warp", "threads" (a given number, at one of 16 barriers), "cluster".

    action: "sync" arrives and waits, "arrive" only arrives, "arrive_relaxed" arrives without ordering memory, "wait"
    waits for the others after an arrive.
    """

    among: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} at a barrier of {self.among}"


@dataclass(frozen=True, slots=True)
class MbarrierSpec:
    """A step of an mbarrier: 8 bytes of shared memory that count pending arrivals and pending bytes of a phase.

    A phase completes when both are 0; the next begins with the expected count given by init. action: init, invalidate,
    arrive, expect_tx (adds pending bytes), arrive_expect_tx, arrive_copies (an arrival, one of those that init counted,
    as soon as the thread's cp.async have landed), test_wait and try_wait (whether the phase of a parity has completed;
    the second may block for a while), wait (until it has). remote: the barrier at the same offset in another block of
    the cluster.
    """

    action: str
    remote: bool = False

    def __str__(self) -> str:
        return f"mbarrier {self.action}{' in another block' if self.remote else ''}"


@dataclass(frozen=True, slots=True)
class FenceSpec:
    """Memory accesses before the fence become visible before those after it, to "block", "cluster", "gpu" or "system".

    of: "memory"; "mbarrier_init": only initialisations of mbarriers; "async_shared", "async_global": between ordinary
    accesses and those of TMA and wgmma, to that memory.
    """

    scope: str
    of: str = "memory"

    def __str__(self) -> str:
        return f"fence of {self.of} for {self.scope}"


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Groups of asynchronous work: of "cp_async", "bulk" or "wgmma".

    action: "commit" closes a group; "wait" waits until at most a given number, a constant operand, of the latest are
    unfinished; "wait_all"; "wait_read" waits until their source may be overwritten; "begin" orders wgmma after accesses
    to its registers.
    """

    of: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} of {self.of} groups"


@dataclass(frozen=True, slots=True)
class GridSpec:
    """Dependent launches: "wait" for the grids before this one, or "launch" the next grid before this one ends."""

    action: str

    def __str__(self) -> str:
        return f"{self.action} of dependent grids"


@dataclass(frozen=True, slots=True)
class DescriptorSpec:
    """The 64-bit descriptor of a wgmma operand in shared memory: see ``taskmap.ir.isa.wgmma_descriptor``."""

    def __str__(self) -> str:
        return "descriptor of a matrix in shared memory"


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """Other blocks of the cluster: "address" of the same offset in a block's shared memory, the "value" that is there,
    or this block's "rank"."""

    what: str

    def __str__(self) -> str:
        return f"{self.what} in the cluster"


@dataclass(frozen=True, slots=True)
class RegisterLimitSpec:
    """Raise (``grow``) or lower the register limit per thread of a warpgroup, to a constant operand."""

    grow: bool

    def __str__(self) -> str:
        return f"{'more' if self.grow else 'fewer'} registers per thread"


@dataclass(frozen=True, slots=True)
class RegisterHoldSpec:
    """Not an instruction: a compiler fence that keeps reads and writes of registers on their side of it."""

    def __str__(self) -> str:
        return "order of accesses to registers"


@dataclass(frozen=True, slots=True)
class TileStateSpec:
    """The tile registers of a thread: "configure" all of them with their largest shape, or "release" them. Both leave
    them without content."""

    action: str

    def __str__(self) -> str:
        return f"{self.action} the tile registers"


@dataclass(frozen=True, slots=True)
class MicroKernelSpec:
    """The work of a user's micro-kernel: its name, and the spec that it performs, as text. counted: its twin does what
    it does, step by step; otherwise only the result is the same, and its cost is unknown without a GPU."""

    name: str
    does: str
    counted: bool = True

    def __str__(self) -> str:
        return f"{self.does} by {self.name}"


Spec = (
    MatMulSpec
    | LaneDotSpec
    | MoveSpec
    | ConvertSpec
    | ApproximationSpec
    | CachedMoveSpec
    | MatrixMoveSpec
    | FragmentMoveSpec
    | TileMoveSpec
    | TileZeroSpec
    | AsyncCopySpec
    | BulkCopySpec
    | TensorMoveSpec
    | PrefetchSpec
    | ShuffleSpec
    | VoteSpec
    | WarpReduceSpec
    | AtomicSpec
    | BarrierSpec
    | MbarrierSpec
    | FenceSpec
    | GroupSpec
    | GridSpec
    | DescriptorSpec
    | PeerSpec
    | RegisterLimitSpec
    | RegisterHoldSpec
    | TileStateSpec
    | MicroKernelSpec
)
"""The operation of an instruction."""
