"""Activations and products that ONNX Runtime's optimiser fuses with their neighbours."""

from __future__ import annotations

import math
from typing import Any

from taskmap.graph.importers.onnx.contract import composed
from taskmap.graph.importers.onnx.read.composition import Body
from taskmap.ir.errors import UnsupportedError


def gelu(b: Body, x: str, approximate: str = "none") -> str:
    """The Gaussian error linear unit."""
    return b("Gelu", x, approximate=approximate)


@composed("Gelu", "X:F -> Y:F")
def _gelu(b: Body) -> None:
    b.returns(gelu(b, "X"))


@composed("FastGelu", "X:F bias:F? -> Y:F")
def _fast_gelu(b: Body) -> None:
    b.returns(gelu(b, b.plus("X", b["bias"]), "tanh"))


@composed("BiasGelu", "A:F B:F -> C:F")
def _bias_gelu(b: Body) -> None:
    b.returns(gelu(b, b("Add", "A", "B")))


@composed("QuickGelu", "X:F -> Y:F", "alpha:f")
def _quick_gelu(b: Body) -> None:
    scaled = b("Mul", "X", b.number(b.attr("alpha", 1.702), "X"))
    b.returns(b("Mul", "X", b("Sigmoid", scaled)))


@composed("BiasAdd", "X:F bias:F skip:F -> Y:F")
def _bias_add(b: Body) -> None:
    b.returns(b("Add", b("Add", "X", "bias"), "skip"))


@composed("BiasSplitGelu", "X:F bias:F -> Y:F")
def _bias_split_gelu(b: Body) -> None:
    half = b.size("X", -1) // 2
    left, right = b.split(b("Add", "X", "bias"), -1, [half, half])
    b.returns(b("Mul", left, gelu(b, right)))


@composed("BiasSoftmax", "data:F bias:F -> output:F", "axis:i is_inner_broadcast:i")
def _bias_softmax(b: Body) -> None:
    rank, other = len(b.shape("data")), len(b.shape("bias"))
    axis = b.call.axis(b.attr("axis", 1), rank)
    bias = "bias"
    if b.attr("is_inner_broadcast", 0) and other < rank:  # its first dimensions are data's, its last from axis on
        last = rank - axis
        places = [*range(other - last), *range(axis, rank)]
        bias = b("Unsqueeze", bias, b.ints(*(d for d in range(rank) if d not in places)))
    sizes = b.sizes("data", 0, axis)
    flat = b("Reshape", b("Add", "data", bias), b("Concat", sizes, b.ints(-1), axis=0))
    b.returns(b("Reshape", b("Softmax", flat, axis=axis), b.sizes("data", 0, rank)))


@composed("BiasDropout", "data:F bias:F residual:F? ratio:F1? training_mode:bool? -> output:F mask:bool?", "seed:i")
def _bias_dropout(b: Body) -> None:
    b.refuse("training", b["training_mode"] and bool(b.known("training_mode")))
    b.returns(b.plus(b("Add", "data", "bias"), b["residual"]), "")


def activated(b: Body, x: str, name: str, values: list[float], like: str) -> str:
    """``x`` after the activation ``name`` with its parameters."""
    alpha: Any = values[0] if values else None
    beta: Any = values[1] if len(values) > 1 else None
    if name in ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish", "Gelu", "Softmax"):
        return b(name, x)
    if name in ("LeakyRelu", "Elu", "ThresholdedRelu"):
        return b(name, x, **({} if alpha is None else {"alpha": alpha}))
    if name == "HardSigmoid":
        return b(name, x, **({} if alpha is None else {"alpha": alpha, "beta": 0.5 if beta is None else beta}))
    if name == "Clip":
        low, high = (-math.inf if alpha is None else alpha), (math.inf if beta is None else beta)
        return b(name, x, b.number(low, like), b.number(high, like))
    if name == "QuickGelu":
        return b("Mul", x, b("Sigmoid", b("Mul", x, b.number(1.702 if alpha is None else alpha, like))))
    if name in ("", "Identity"):
        return x
    raise UnsupportedError(f"{b.call.op} with the activation {name}")


def _parameters(b: Body) -> list[float]:
    names = ["activation_alpha", "activation_beta", "activation_gamma"]
    return [float(b.call.attributes[n]) for n in names if n in b.call.attributes]


@composed(
    "FusedGemm",
    "A:F B:F C:F? -> Y:F",
    "activation:s activation_alpha:f activation_beta:f activation_gamma:f alpha:f beta:f transA:i transB:i",
)
def _fused_gemm(b: Body) -> None:
    names = ("alpha", "beta", "transA", "transB")
    made = b("Gemm", "A", "B", b["C"], **{n: b.attr(n, None) for n in names if n in b.call.attributes})
    b.returns(activated(b, made, b.attr("activation", ""), _parameters(b), "A"))


def _fused_matmul(b: Body) -> str:
    operands = []
    for name in ("A", "B"):
        rank = len(b.shape(name))
        order = list(range(rank))
        if b.attr(f"transBatch{name}", 0) and rank > 1:  # the first dimension moves behind the other batch dimensions
            order = [*order[1:-1], 0, order[-1]]
        if b.attr(f"trans{name}", 0) and rank > 1:
            order[-2:] = order[-1], order[-2]
        operands.append(name if order == list(range(rank)) else b("Transpose", name, perm=order))
    product = b("MatMul", *operands)
    alpha = b.attr("alpha", 1.0)
    return product if alpha == 1.0 else b("Mul", product, b.number(alpha, "A"))


_MATMUL = "alpha:f transA:i transB:i transBatchA:i transBatchB:i"


@composed("FusedMatMul", "A:F B:F -> Y:F", _MATMUL)
@composed("TransposeMatMul", "A:F B:F -> Y:F", _MATMUL)
def _matmul(b: Body) -> None:
    b.returns(_fused_matmul(b))


@composed(
    "FusedMatMulActivation",
    "A:F B:F -> Y:F",
    f"{_MATMUL} activation:s activation_alpha:f activation_beta:f activation_gamma:f activation_axis:i",
)
def _matmul_activation(b: Body) -> None:
    name = b.attr("activation", "")
    product = _fused_matmul(b)
    if name == "Softmax":
        b.returns(b("Softmax", product, axis=int(b.attr("activation_axis", -1))))
        return
    b.returns(activated(b, product, name, _parameters(b), "A"))
