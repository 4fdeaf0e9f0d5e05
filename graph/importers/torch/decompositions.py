"""Selects the ATen operators that AOTAutograd decomposes before the graph reaches taskmap."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from taskmap.graph.importers.torch.aten import ATEN
from taskmap.graph.importers.torch.mixed_norms import mixed_norms
from taskmap.graph.importers.torch.quantised import quantised_rules

KEEP_WHOLE = frozenset(
    {"native_dropout.default", "native_dropout_backward.default", "bernoulli.default", "upsample_bicubic2d.vec"}
)
"""Operators without a lowering that PyTorch runs better whole, such as random ones, whose numbers must be eager's."""

_is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = getattr(torch._C, "_is_alias_of")  # noqa: B009  # no stub

EXTRA = ("native_batch_norm_backward", "native_group_norm_backward")
"""Operators that PyTorch's core set does not decompose."""


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The table for AOTAutograd: PyTorch's core decompositions, except for operators that taskmap lowers itself.

    The public ``core_aten_decompositions`` also collects the composite operators of all loaded libraries. That takes
    0.1 s and is not needed, because the dispatcher decomposes those anyway.
    """
    return {**_table(frozenset(ATEN.entries.keys() | KEEP_WHOLE)), **quantised_rules(), **mixed_norms()}


@lru_cache(maxsize=4)
def _table(kept: frozenset[str]) -> dict[OpOverload, Callable[..., Any]]:
    """The rules of all operators except ``kept``."""
    table: dict[Any, Callable[..., Any]] = {**_core_aten_decompositions_post_autograd()}
    table.update(get_decompositions([getattr(torch.ops.aten, name) for name in EXTRA]))
    # Some rules create a tensor literal, for which PyTorch calls ``detach_``: it only looks like a mutation.
    table[torch.ops.aten.detach_.default] = _same
    return {op: _owning(op, rule) for op, rule in table.items() if str(op).removeprefix("aten.") not in kept}


def _owning(op: OpOverload, rule: Callable[..., Any]) -> Callable[..., Any]:
    """``rule`` with results that own their memory wherever those of ``op`` do. Some rules return views (a shuffle of
    one channel), which would lose the copy that the operator makes.
    """
    if any(result.alias_info is not None for result in op._schema.returns):
        return rule

    @wraps(rule)
    def owning(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        given = [x for x in args if isinstance(x, torch.Tensor)]

        def own(x: torch.Tensor) -> torch.Tensor:
            return x.clone() if any(_is_alias_of(x, y) for y in given) else x

        return tree_map_only(torch.Tensor, own, result)

    return owning


def _same(x: torch.Tensor) -> torch.Tensor:
    return x
