"""Distances, samples, unique elements and windows; operators on small arrays that the host runs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from taskmap.graph.importers.onnx.contract import MICROSOFT, composed, contract
from taskmap.graph.importers.onnx.read.call import HostStep, OnnxCall
from taskmap.graph.importers.onnx.read.composition import Body
from taskmap.graph.importers.onnx.read.elements import STRING
from taskmap.graph.importers.onnx.read.host import on_host, step
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.ir.construct import static_size

Array = NDArray[Any]
INT32, UINT32, INT64 = (int(getattr(TensorProto, n)) for n in ("INT32", "UINT32", "INT64"))


@composed("SampleOp", "X:A -> Y:A")
def _sample(b: Body) -> None:
    b.returns(b("Identity", "X"))


@composed("CDist", "A:F B:F -> C:F", "metric:s")
def _distances(b: Body) -> None:
    """Between each row of A and each row of B, summed by differences: near rows lose no digits."""
    kind = b.attr("metric", "sqeuclidean")
    b.refuse(f"the metric {kind}", kind not in ("euclidean", "sqeuclidean"))
    apart = b("Sub", b("Unsqueeze", "A", b.ints(1)), b("Unsqueeze", "B", b.ints(0)))
    total = b("ReduceSum", b("Mul", apart, apart), b.ints(2), keepdims=0)
    b.returns(b("Sqrt", total) if kind == "euclidean" else total)


@composed("GridSample", "X:A Grid:A -> Y:A", "align_corners:i mode:s padding_mode:s")
def _grid_sample(b: Body) -> None:
    modes = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    mode = b.attr("mode", "bilinear")
    b.refuse(f"the mode {mode}", mode not in modes)
    settings = {"padding_mode": b.attr("padding_mode", "zeros"), "align_corners": int(b.attr("align_corners", 0))}
    b.returns(b("GridSample", "X", "Grid", mode=modes[mode], **settings))


@composed("Unique", "x:A -> y:A idx:i64 counts:i64")
def _unique(b: Body) -> None:
    found, _, places, counts = b.several(4, "Unique", "x", sorted=0)
    b.returns(found, places, counts)


@composed("MatMulInteger16", "A:A B:A1 -> Y:A2")
def _product(b: Body) -> None:
    signed = int(TensorProto.INT16) in (b.elem("A"), b.elem("B"))
    operands = [b.cast(n, INT32 if signed else UINT32) for n in ("A", "B")]
    b.returns(b("MatMul", *operands))


@composed("UnfoldTensor", "input:A -> output:A", "dim:i size:i step:i")
def _unfold(b: Body) -> None:
    rank = len(b.shape("input"))
    axis, size = b.call.axis(int(b.attr("dim", -1)), rank), int(b.call.required("size"))
    apart, whole = int(b.attr("step", 1)), b.size("input", axis)
    if size < 1 or apart < 1 or size > whole:
        raise b.call.error(f"windows of {size} elements, {apart} apart, of {whole}")
    places = np.arange(0, whole - size + 1, apart)[:, None] + np.arange(size)
    windows = b("Gather", "input", b.constant(places), axis=axis)
    b.returns(b("Transpose", windows, perm=[*(d for d in range(rank + 1) if d != axis + 1), axis + 1]))


@composed(
    "ConvTransposeWithDynamicPads",
    "X:F W:F Pads:i64? B:F? -> Y:F",
    "auto_pad:s dilations:is group:i kernel_shape:is output_padding:is strides:is",
)
def _transposed_convolution(b: Body) -> None:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides")
    given = {n: b.call.attributes[n] for n in names if n in b.call.attributes}
    if b["Pads"]:
        given["pads"] = [int(n) for n in b.known("Pads").reshape(-1)]
    b.returns(b("ConvTranspose", "X", "W", b["B"], **given))


contract(MICROSOFT, "Inverse", "X:F -> Y:F")
contract(MICROSOFT, "DynamicTimeWarping", "input:f32 -> output:i32")
contract(MICROSOFT, "NGramRepeatBlock", "input_ids:i64 scores:f32 -> scores_out:f32", "ngram_size:i")
contract(MICROSOFT, "MurmurHash3", "X:S -> Y:A", "positive:i seed:i")
contract(
    MICROSOFT, "CropAndResize", "X:F rois:F batch_indices:i32 crop_size:i32 -> Y:F", "extrapolation_value:f mode:s"
)
contract(
    MICROSOFT, "Tokenizer", "X:S -> Y:S", "mark:i mincharnum:i pad_value:s separators:ss tokenexp:s"
)  # fmt: skip


@lowering("Inverse", domain=MICROSOFT)
def _inverse(call: OnnxCall) -> Any:
    x = call.tensor(0)

    def run(a: Array) -> Array:
        made: Array = np.linalg.inv(a.astype(np.float64 if a.dtype == np.float64 else np.float32)).astype(a.dtype)
        return made

    return on_host(call, run, [(x.elem, x.shape)], "the inverse of matrices")


@lowering("DynamicTimeWarping", domain=MICROSOFT)
def _time_warping(call: OnnxCall) -> HostStep:
    """The cheapest path through a matrix of costs, from its first element to its last."""

    def run(costs: Array) -> Array:
        rows, columns = costs.shape[-2:]
        cost = costs.reshape(rows, columns)
        total = np.full((rows + 1, columns + 1), np.inf, np.float32)
        total[0, 0] = 0
        came = np.zeros((rows, columns), np.int64)
        for j in range(columns):
            for i in range(rows):
                before = (total[i, j], total[i, j + 1], total[i + 1, j])
                way = 0 if before[0] < min(before[1:]) else 1 if before[1] < min(before[0], before[2]) else 2
                came[i, j] = way
                total[i + 1, j + 1] = cost[i, j] + before[way]
        path: list[tuple[int, int]] = []
        i, j = rows - 1, columns - 1
        while i >= 0 and j >= 0:
            path.append((i, j))
            way = 2 if i == 0 and j else 1 if j == 0 and i else came[i, j]
            i, j = (i - (way != 2), j - (way != 1))
        made: Array = np.array(path[::-1], np.int32).T.copy()
        return made

    return step(call, run, INT32, shapes=((2, None),))


@lowering("NGramRepeatBlock", domain=MICROSOFT)
def _no_repeats(call: OnnxCall) -> Any:
    """-inf for each token that would repeat an n-gram of its row."""
    size, scores = int(call.required("ngram_size")), call.tensor(1)

    def run(tokens: Array, scores: Array) -> Array:
        made: Array = scores.copy()
        for row, found in zip(tokens, made, strict=True):
            if len(row) + 1 < size:
                continue
            last = row[len(row) - size + 1 :]
            for start in range(len(row) - size + 1):
                if (row[start : start + size - 1] == last).all():
                    found[row[start + size - 1]] = -np.inf
        return made

    return on_host(call, run, [(scores.elem, scores.shape)], "n-grams")


@lowering("MurmurHash3", domain=MICROSOFT)
def _murmur(call: OnnxCall) -> Any:
    """MurmurHash3_x86_32 of the bytes of each element, or of each string."""
    seed, x = int(call.attr("seed", 0)) & 0xFFFFFFFF, call.tensor(0)
    positive = bool(call.attr("positive", 1))

    def run(a: Array) -> Array:
        data = [v.encode() if isinstance(v, str) else v.tobytes() for v in a.reshape(-1)]
        made = np.array([murmur3(d, seed) for d in data], np.uint32).reshape(a.shape)
        return made if positive else made.view(np.int32)

    return on_host(call, run, [(UINT32 if positive else INT32, x.shape)], "hashes")


def murmur3(data: bytes, seed: int) -> int:
    """The 32-bit MurmurHash3 of ``data`` (A. Appleby, smhasher)."""
    whole = 0xFFFFFFFF

    def turned(x: int, bits: int) -> int:
        return (x << bits | x >> 32 - bits) & whole

    def scrambled(k: int) -> int:
        return turned(k * 0xCC9E2D51 & whole, 15) * 0x1B873593 & whole

    h, end = seed, len(data) // 4 * 4
    for at in range(0, end, 4):
        h = turned(h ^ scrambled(int.from_bytes(data[at : at + 4], "little")), 13) * 5 + 0xE6546B64 & whole
    h ^= scrambled(int.from_bytes(data[end:], "little"))
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & whole
    h = (h ^ h >> 13) * 0xC2B2AE35 & whole
    return h ^ h >> 16


@lowering("CropAndResize", domain=MICROSOFT)
def _crop(call: OnnxCall) -> Any:
    x, rois = call.tensor(0), call.tensor(1)
    height, width = call.ints(3)
    mode, beyond = call.attr("mode", "bilinear"), float(call.attr("extrapolation_value", 0.0))
    if mode not in ("bilinear", "nearest") or height < 1 or width < 1:
        raise call.error(f"crops of {height} x {width}, {mode}")

    def run(x: Array, rois: Array, batch: Array) -> Array:
        made = np.full((len(rois), x.shape[1], height, width), beyond, x.dtype)
        for k, (box, image) in enumerate(zip(rois.astype(np.float32), batch, strict=True)):
            ys, xs = (_places(box[d], box[d + 2], x.shape[2 + d], n) for d, n in enumerate((height, width)))
            for i, j in np.argwhere(_inside(ys, x.shape[2])[:, None] & _inside(xs, x.shape[3])[None]):
                made[k, :, i, j] = _sampled(x[image], ys[i], xs[j], mode)
        return made

    shape = (rois.shape[0], x.shape[1], height, width)
    return on_host(call, run, [(x.elem, shape)], "crops", inputs=range(3))


def _places(low: Any, high: Any, size: int, count: int) -> Array:
    """The places of ``count`` samples along a side of a box, whose ends are samples."""
    if count == 1:
        return np.array([0.5 * (low + high) * (size - 1)], np.float32)
    step_ = (high - low) * (size - 1) / (count - 1)
    made: Array = (low * (size - 1) + np.arange(count, dtype=np.float32) * step_).astype(np.float32)
    return made


def _inside(places: Array, size: int) -> Array:
    made: Array = (places >= 0) & (places <= size - 1)
    return made


def _sampled(image: Array, y: Any, x: Any, mode: str) -> Array:
    """The values of all channels at one place."""
    if mode == "nearest":
        nearest: Array = image[:, int(np.floor(y + 0.5)), int(np.floor(x + 0.5))]
        return nearest
    top, left = int(np.floor(y)), int(np.floor(x))
    bottom, right = int(np.ceil(y)), int(np.ceil(x))
    above = image[:, top, left] + (image[:, top, right] - image[:, top, left]) * (x - left)
    below = image[:, bottom, left] + (image[:, bottom, right] - image[:, bottom, left]) * (x - left)
    made: Array = above + (below - above) * (y - top)
    return made


@lowering("Tokenizer", domain=MICROSOFT)
def _tokenizer(call: OnnxCall) -> HostStep:
    """The tokens of each string, between marks if asked for, and padded to the largest number of tokens."""
    separators, expression = call.attr("separators"), call.attr("tokenexp")
    if (separators is None) == (expression is None):
        raise call.error("it needs either separators or an expression of tokens")
    least, pad, mark = int(call.required("mincharnum")), str(call.required("pad_value")), bool(call.attr("mark", 0))
    if least < 1 or static_size(len(call.tensor(0).shape)) not in (1, 2):
        raise call.error(f"tokens of at least {least} characters")
    try:
        wanted = None if expression is None else re.compile(expression)
        between = [re.compile(s) for s in separators or []]
    except re.error as error:
        raise call.error("its expression cannot be read", str(error)) from error

    def tokens(text: str) -> list[str]:
        if expression == "." or separators == [""]:
            found = list(text)
        elif wanted is not None:
            found = [m[0] for m in wanted.finditer(text)]
        else:
            found = [text]
            for separator in between:
                found = [part for piece in found for part in separator.split(piece)]
        return [t for t in found if len(t) >= least]

    def run(a: Array) -> Array:
        rows = [tokens(v) for v in a.reshape(-1).tolist()]
        rows = [["\x02", *row, "\x03"] for row in rows] if mark else rows
        longest = max(map(len, rows), default=0)
        made = np.full((len(rows), longest), pad, object)
        for place, row in zip(made, rows, strict=True):
            place[: len(row)] = row
        return made.reshape(*a.shape, longest)

    return step(call, run, STRING)
