"""The backend of torch.compile: torch.compile(model, backend="taskmap", mode=..., options={...}).

AOTAutograd turns the captured graph into graphs of ATen operators without mutation; each (forward, backward,
inference) is imported and compiled. The backend keeps no state: every call of compile_fx is independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from taskmap.compile.aten import compile_aten
from taskmap.compile.backward.partition import partition
from taskmap.compile.early_rules import early_rules
from taskmap.compile.recurrent_layers import keep_layers
from taskmap.compile.recurrent_tracing import RecurrentTracing
from taskmap.compile.session import Session, new_session
from taskmap.graph.importers.torch.decompositions import decompositions
from taskmap.graph.importers.torch.gpu_attention import gpu_attention_rules
from taskmap.ir.target import CpuTarget, GpuTarget
from taskmap.options import Options
from taskmap.targets.torch_devices import device_of


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile a captured graph; torch.compile calls this.

    ``mode`` and ``options`` are those given to torch.compile; see taskmap.Options. Raises InvalidOptionError for an
    invalid one, and a TaskmapError that says what, where and why when compiling fails.
    """
    session = new_session(Options.from_user(mode, options), device_of(gm, example_inputs))
    return compile_captured(gm, example_inputs, session)


def compile_captured(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], session: Session) -> Callable[..., Any]:
    """As compile_fx, with parsed options; reports read ``session.record`` afterwards."""
    freeze = session.options.freeze and not any(
        # An inference tensor has no version counter, so changes to it would go unnoticed.
        isinstance(x, torch.Tensor) and x.is_inference()
        for x in example_inputs
    )
    backend = aot_autograd(
        fw_compiler=_compiler("forward", session),
        bw_compiler=_compiler("backward", session),
        inference_compiler=_compiler("inference", session, freeze),
        decompositions={**decompositions(), **_attentions(session)},
        partition_fn=partition,
    )
    keep_layers(gm, example_inputs, _cache(session), session.options.threads or torch.get_num_threads())
    with early_rules():
        compiled: Callable[..., Any] = backend(gm, _as_called(gm, example_inputs))
    return compiled


def _attentions(session: Session) -> dict[Any, Callable[..., Any]]:
    """The rules that replace PyTorch's attentions of GPUs. On a GPU they apply to the generation on which taskmap's
    kernels were measured to be as fast, Hopper; PyTorch's run on others."""
    target = session.target
    measured = not isinstance(target, GpuTarget) or target.capability == 90
    return gpu_attention_rules() if measured or session.platform.device.type != "cuda" else {}


def _cache(session: Session) -> float:
    """The bytes of a core's second-level cache. On a GPU none: there PyTorch has cuDNN; unlimited where a GPU is
    simulated."""
    if isinstance(session.target, CpuTarget):
        return session.target.l2
    return 0 if session.platform.device.type == "cuda" else math.inf


def _as_called(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The examples with the types that calls pass: TorchDynamo shows a random Python number as f32, but then
    passes it as f64 (PyTorch 2.13, ``codegen.py``: ``_as_tensor_fullprec``)."""
    given = list(example_inputs)
    for k, node in enumerate(gm.graph.find_nodes(op="placeholder")[: len(given)]):
        source = getattr(node.meta.get("grapharg"), "source", None)
        if type(source).__name__ == "RandomValueSource" and given[k].dtype == torch.float32:
            given[k] = given[k].double()
    return given


def _compiler(kind: str, session: Session, freeze: bool = False) -> Callable[..., Any]:
    return partial(compile_aten, kind=kind, session=session, freeze=freeze)


RecurrentTracing(compile_fx, compile_captured).register()  # the backend is loaded before the first frame is traced
