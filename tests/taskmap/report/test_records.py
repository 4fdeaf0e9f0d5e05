"""A compilation keeps everything that a report needs: groups, kernels, times, externs with reasons, fallbacks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from taskmap.calls.prepared import PreparedGraph
from taskmap.compile.session import Compilation, Fallback, new_session
from taskmap.graph.nodes import ExternNode
from taskmap.options import Options
from taskmap.torch_backend import compile_captured
from tests.taskmap.compare import assert_like


def test_a_recorded_compilation_tells_groups_kernels_and_times() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sort((x @ x.t()).relu() + 1)[0].sum(-1)

    session = new_session(Options(profile=True))
    session.record = []
    run = torch.compile(f, backend=partial(compile_captured, session=session))
    x = torch.randn(4, 6)
    for _ in range(2):
        assert_like(run(x), f(x), rtol=1e-5, atol=1e-5)
    (seen,) = session.record
    assert isinstance(seen, Compilation)
    main = seen.parts.main
    assert len(main.origins) == len(main.program.steps)
    externs = [origin for origin in main.origins if isinstance(origin, ExternNode)]
    assert [node.reason for node in externs] == ["no taskmap operator"]
    graph = seen.call.main if isinstance(seen.call, PreparedGraph) else seen.call
    executable = graph.executable
    assert len(executable.runs) == 2
    assert all(len(timed.seconds) == len(main.origins) for timed in executable.runs)
    assert all(0 < t < 1 for timed in executable.runs for t in timed.seconds)
    for origin in main.origins:
        if not isinstance(origin, ExternNode):
            assert seen.kernels[origin].schedule
            assert any(node.origin.file == __file__ for node in origin.nodes)


def test_a_fallback_is_recorded_with_its_reason() -> None:
    session = new_session(Options())
    session.record = []
    run = torch.compile(
        lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
        backend=partial(compile_captured, session=session),
    )
    x = torch.ones(3)
    assert_like(run(x), x + 1)
    assert [type(entry) for entry in session.record] == [Fallback]
    assert "cond runs graphs of its own" in str(session.record[0])
