"""Synchronisation and ordering of threads: barriers, mbarriers, fences, clusters, dependent grids."""

from __future__ import annotations

from taskmap.ir.isa.entry import AtLeast, Instruction, Parameter, Place, at_least
from taskmap.ir.isa.memory import mbarrier
from taskmap.ir.isa.specs import BarrierSpec, FenceSpec, GridSpec, MbarrierSpec, PeerSpec, Spec
from taskmap.ir.types import DType, boolean, i32


def _value(name: str) -> Parameter:
    return Parameter(name, Place.VALUE, dtypes=(i32,))


def _plain(
    name: str,
    spec: Spec,
    family: str,
    isa: str,
    *parameters: Parameter,
    workers: int = 1,
    result: DType | str | None = None,
) -> Instruction:
    targets: AtLeast = at_least(isa)
    alignment = 8 if isinstance(spec, MbarrierSpec) else 1
    return Instruction(
        name,
        spec,
        targets,
        workers=workers,
        alignment=alignment,
        text=f"tm_{name}",
        family=family,
        parameters=parameters,
        result=result,
    )


def _mbarrier(
    action: str, *values: str, isa: str = "sm_90", remote: bool = False, result: DType | None = None
) -> Instruction:
    """A step of an mbarrier. A remote one takes the block's number after the barrier."""
    given = (("block",) if remote else ()) + values
    name = f"mbarrier_{action}{'_remote' if remote else ''}"
    spec = MbarrierSpec(action, remote)
    return _plain(name, spec, "mbarrier", isa, mbarrier(), *map(_value, given), result=result)


def _fence(name: str, scope: str, of: str = "memory", isa: str = "sm_90") -> Instruction:
    return _plain(f"fence_{name}", FenceSpec(scope, of), "fence", isa)


def _cluster(action: str) -> Instruction:
    return _plain(f"cluster_{action}", BarrierSpec("cluster", action), "cluster", "sm_90", workers=32)


SYNC: tuple[Instruction, ...] = (
    _mbarrier("init", "count", isa="sm_80"),
    _mbarrier("invalidate", isa="sm_80"),
    _mbarrier("arrive", isa="sm_80"),
    _mbarrier("test_wait", "parity", isa="sm_80", result=boolean),
    _mbarrier("expect_tx", "bytes"),
    _mbarrier("arrive_expect_tx", "bytes"),
    _mbarrier("try_wait", "parity", result=boolean),
    _mbarrier("wait", "parity"),
    _mbarrier("arrive", remote=True),
    _mbarrier("arrive_expect_tx", "bytes", remote=True),
    _fence("block", "block", isa="sm_75"),
    _fence("gpu", "gpu", isa="sm_75"),
    _fence("system", "system", isa="sm_75"),
    _fence("cluster", "cluster"),
    _fence("mbarrier_init", "cluster", "mbarrier_init"),
    _fence("proxy_async", "block", "async_shared"),
    _fence("proxy_async_global", "block", "async_global"),
    _plain("warp_sync", BarrierSpec("warp", "sync"), "barrier", "sm_75", workers=32),
    *(
        _plain(
            f"barrier_{action}",
            BarrierSpec("threads", action),
            "barrier",
            "sm_75",
            *map(_value, ("id", "threads")),
            workers=32,
        )
        for action in ("sync", "arrive")
    ),
    *(_cluster(action) for action in ("arrive", "arrive_relaxed", "wait")),
    _plain("cluster_rank", PeerSpec("rank"), "cluster", "sm_90", result=i32),
    _plain(
        "cluster_map",
        PeerSpec("address"),
        "cluster",
        "sm_90",
        Parameter("memory", Place.SHARED),
        _value("block"),
        result="memory",
    ),
    _plain(
        "cluster_load",
        PeerSpec("value"),
        "cluster",
        "sm_90",
        Parameter("memory", Place.SHARED),
        _value("block"),
        result="memory",
    ),
    _plain("grid_wait", GridSpec("wait"), "cluster", "sm_90"),
    _plain("grid_launch", GridSpec("launch"), "cluster", "sm_90"),
)
