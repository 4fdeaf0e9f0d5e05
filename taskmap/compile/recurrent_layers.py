"""torch.nn.LSTM, GRU and RNN under torch.compile, where Dynamo traces them (see recurrent_tracing.py).

PyTorch's own decompositions unroll every time step, so that the graph grows with the sequence length. Here each layer
stays one operator: the importer turns it into a loop, and PyTorch computes its gradient from the layer's inputs.

The loop of a sequence runs on one core, which reads all weights of the states in every step. Where its cache cannot
hold them, PyTorch runs the layer: it shares their products among cores, and among the sequences of a batch. That is no
gain for a single sequence whose directions occupy all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._functorch import maybe_current_level
from torch.fx.experimental.symbolic_shapes import statically_known_true

KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_EAGER: dict[str, Callable[..., Any]] = {kind: getattr(torch, kind) for kind in KINDS}
_ARGUMENTS = 9
"""Arguments of a call with sequences of one length; packed sequences have as many, but their flag is elsewhere."""


def keep_layers(gm: fx.GraphModule, example_inputs: Sequence[Any], cache: float, threads: int) -> None:
    """Replace, in place, each LSTM, GRU or RNN call in a graph captured by Dynamo by layers of one operator each.
    ``cache``: the bytes of weights that each of ``threads`` cores holds."""
    trained = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in example_inputs)
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        found = [n for n in module.graph.nodes if n.op == "call_function" and n.target in _EAGER.values()]
        for node in found:
            kind = next(k for k, function in _EAGER.items() if function == node.target)
            node.target, node.args = recurrent_layers, (kind, trained, cache, threads, *node.args)
        if found:
            module.recompile()


def recurrent_layers(kind: str, trained: bool, cache: float, threads: int, *args: Any, **kwargs: Any) -> Any:
    """The call, layer by layer; a layer that is not supported runs as in PyTorch."""
    plain = _is_plain(kind, args, kwargs)
    if not trained and (_exceeds(cache, threads, args) if plain else _has_projections(kind, args, kwargs)):
        return _whole(kind, *args)
    if not plain:
        return _taken_apart(kind, trained, *args, **kwargs)
    x, hx, params, biased, layers, dropout, train, bidirectional, batch_first = args
    states = list(hx) if kind == "lstm" else [hx]
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    each = directions * (4 if biased else 2)
    last: list[list[Tensor]] = []
    for layer in range(layers):
        if layer and dropout and train:
            x = torch.dropout(x, dropout, True)
        own = [s[layer * directions : (layer + 1) * directions] for s in states]
        x, *ends = torch.ops.taskmap.recurrent(kind, x, own, list(params[layer * each : (layer + 1) * each]), biased)
        last.append(ends)
    results = [ends[0] if layers == 1 else torch.cat(ends) for ends in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *results)


def _exceeds(cache: float, threads: int, args: Sequence[Any]) -> bool:
    """True for a call without dropout if PyTorch runs it faster, by the bytes of a layer's weights of the state."""
    x, _, params, _, _, dropout, train, bidirectional, batch_first = args
    alone = statically_known_true(x.shape[0 if batch_first else 1] == 1) and 1 + bidirectional >= threads
    return not alone and not (dropout and train) and params[1].numel() * params[1].itemsize > cache


def _whole(kind: str, x: Tensor, hx: Any, *args: Any) -> tuple[Tensor, ...]:
    params, biased, layers, _, _, bidirectional, batch_first = args
    x = x.transpose(0, 1) if batch_first else x
    states = list(hx) if kind == "lstm" else [hx]
    every, *last = torch.ops.taskmap.recurrent_call(kind, x, states, params, biased, layers, bidirectional)
    return (every.transpose(0, 1) if batch_first else every, *last)


def _taken_apart(kind: str, trained: bool, *args: Any, **kwargs: Any) -> Any:
    """The call as PyTorch decomposes it. For an LSTM on the CPU, PyTorch picks oneDNN's inference layers whenever
    the sequence itself needs no gradient: if the weights need one, the values to save are missing. Single
    operators all have gradients."""
    if kind != "lstm" or not trained:
        return _EAGER[kind](*args, **kwargs)
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return torch.lstm(*args, **kwargs)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _is_plain(kind: str, args: Sequence[Any], kwargs: Any) -> bool:
    """True for a call with sequences of one length, without projections, in one type, and without other observers."""
    if kwargs or not _has_one_length(args):
        return False
    _, hx, params, biased, layers, _, _, bidirectional, _ = args
    states = list(hx) if kind == "lstm" else [hx]
    hidden = states[0].shape[-1]
    if len(params) != layers * (2 if bidirectional else 1) * (4 if biased else 2) or states[-1].shape[-1] != hidden:
        return False
    return _is_uniform([args[0], *states, *params])


def _has_one_length(args: Sequence[Any]) -> bool:
    return len(args) == _ARGUMENTS and isinstance(args[3], bool) and isinstance(args[8], bool)


def _has_projections(kind: str, args: Sequence[Any], kwargs: Any) -> bool:
    """True for an LSTM whose outputs are projections of its states, without dropout, otherwise plain."""
    if kwargs or kind != "lstm" or not _has_one_length(args):
        return False
    x, hx, params, biased, layers, dropout, train, bidirectional, _ = args
    each = 5 if biased else 3
    return (
        len(params) == layers * (2 if bidirectional else 1) * each
        and not (dropout and train)
        and _is_uniform([x, *hx, *params])
    )


def _is_uniform(tensors: Sequence[Tensor]) -> bool:
    """True for tensors of one type and device, none of them empty, and without observers."""
    x = tensors[0]
    return (
        x.dtype.is_floating_point
        and all(t.dtype == x.dtype and t.device == x.device for t in tensors)
        and not any(isinstance(n, int) and n == 0 for t in tensors for n in t.shape)
        and not torch.is_autocast_enabled(x.device.type)
        and maybe_current_level() is None
    )


def _eager(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    bidirectional: bool,
) -> list[Tensor]:
    """The call by PyTorch, steps first, without dropout."""
    hx = tuple(states) if kind == "lstm" else states[0]
    made: tuple[Tensor, ...] = _EAGER[kind](x, hx, list(weights), biased, layers, 0.0, False, bidirectional, False)
    return list(made)


def _layer(kind: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], biased: bool) -> list[Tensor]:
    """One layer by PyTorch, steps first."""
    return _eager(kind, x, states, weights, biased, 1, bidirectional=len(states[0]) == 2)


def _like_results(x: Tensor, states: Sequence[Tensor], directions: Any) -> list[Tensor]:
    """Tensors of the shapes of the results."""
    steps, batch, _ = x.shape
    return [x.new_empty((steps, batch, directions * states[0].shape[-1])), *(x.new_empty(s.shape) for s in states)]


@torch.library.custom_op("taskmap::recurrent", mutates_args=())
def recurrent(kind: str, x: Tensor, states: list[Tensor], weights: list[Tensor], biased: bool) -> list[Tensor]:
    """One layer: x [steps, batch, width], states [directions, batch, hidden] (two for an LSTM) to the states of all
    steps [steps, batch, directions * hidden] and the last ones. ``weights``: for each direction, those of the input and
    of the state, and their biases."""
    return [t.contiguous() for t in _layer(kind, x, states, weights, biased)]


@recurrent.register_fake
def _(kind: str, x: Tensor, states: list[Tensor], *_: Any) -> list[Tensor]:
    return _like_results(x, states, states[0].shape[0])


@torch.library.custom_op("taskmap::recurrent_call", mutates_args=())
def recurrent_call(
    kind: str,
    x: Tensor,
    states: list[Tensor],
    params: list[Tensor],
    biased: bool,
    layers: int,
    bidirectional: bool,
) -> list[Tensor]:
    """All layers as PyTorch runs them; its decompositions would unroll the steps. Shapes as of ``recurrent``, with
    states [layers * directions, batch, hidden]."""
    return [t.contiguous() for t in _eager(kind, x, states, params, biased, layers, bidirectional)]


@recurrent_call.register_fake
def _(kind: str, x: Tensor, states: list[Tensor], *others: Any) -> list[Tensor]:
    return _like_results(x, states, 2 if others[-1] else 1)


@torch.library.custom_op("taskmap::recurrent_backward", mutates_args=())
def recurrent_backward(
    kind: str, x: Tensor, states: list[Tensor], weights: list[Tensor], biased: bool, gradients: list[Tensor]
) -> list[Tensor]:
    """The gradients of x, states and weights, from those of the results; the layer is run again."""
    key = torch._C.DispatchKey.AutogradFunctionality
    given = [x, *states, *weights]
    with torch.enable_grad(), torch._C._SetExcludeDispatchKeyGuard(key, False):
        leaves = [t.detach().requires_grad_() for t in given]
        split = 1 + len(states)
        made = _layer(kind, leaves[0], leaves[1:split], leaves[split:], biased)
        found = torch.autograd.grad(made, leaves, gradients, allow_unused=True)
    # The two biases are added together: both have the same gradient, and results of an operator share no memory.
    return [
        t.new_zeros(t.shape) if g is None else g.clone(memory_format=torch.contiguous_format)
        for t, g in zip(given, found, strict=True)
    ]


@recurrent_backward.register_fake
def _(
    kind: str, x: Tensor, states: list[Tensor], weights: list[Tensor], biased: bool, gradients: list[Tensor]
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (x, *states, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    kind, x, states, weights, biased = inputs
    ctx.kind, ctx.biased, ctx.split = kind, biased, 1 + len(states)
    ctx.save_for_backward(x, *states, *weights)
    ctx.like = [(t.shape, t.dtype, t.device) for t in output]


def _gradient(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    states, weights = rest[: ctx.split - 1], rest[ctx.split - 1 :]
    whole = [x.new_zeros(shape) if g is None else g for g, (shape, _, _) in zip(gradients, ctx.like, strict=True)]
    made = torch.ops.taskmap.recurrent_backward(ctx.kind, x, states, weights, ctx.biased, whole)
    return None, made[0], made[1 : ctx.split], made[ctx.split :], None


recurrent.register_autograd(_gradient, setup_context=_save)
