"""Operators on images and signals: samples that are compiled, and operators that numpy runs on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from taskmap.graph.importers.onnx.ops import numpy_vision, sampling
from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import HELD, numpy_type
from taskmap.graph.importers.onnx.read.host import concrete, on_host
from taskmap.graph.importers.onnx.read.symbolic import all_known
from taskmap.graph.importers.onnx.read.table import lowering
from taskmap.graph.importers.onnx.read.values import of_array
from taskmap.graph.ops.views import reshape
from taskmap.ir.construct import static_size

MOST_SAMPLES = 16
"""With more samples than this along a side of a bin, the host runs RoiAlign."""


@lowering("GridSample")
def _grid_sample(call: OnnxCall) -> Any:
    x, grid = call.tensor(0), call.tensor(1)
    mode = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}[
        call.attr("mode", "linear")
    ]
    padding, align = call.attr("padding_mode", "zeros"), bool(call.attr("align_corners", 0))
    rank = len(x.shape) - 2
    if rank < 1 or len(grid.shape) != rank + 2 or static_size(grid.shape[-1]) != rank:
        raise call.error(f"a grid of shape {list(grid.shape)} for a tensor of shape {list(x.shape)}")
    call.same(x.shape[0], grid.shape[0])
    if all_known(x.shape[2:]) and x.elem in HELD and (mode != "cubic" or rank <= 2):
        return sampling.grid_sample(call.node(0), call.node(1), mode, padding, align)
    shape = (*x.shape[:2], *grid.shape[1:-1])
    return on_host(
        call,
        lambda a, g: numpy_vision.grid_sample(a, g, mode, padding, align),
        [(x.elem, shape)],
        "data-dependent positions",
    )


@lowering("RoiAlign")
def _roi_align(call: OnnxCall) -> Any:
    x, rois = call.tensor(0), call.tensor(1)
    size = (int(call.attr("output_height", 1)), int(call.attr("output_width", 1)))
    half = call.version >= 16 and call.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    ratio, scale = int(call.attr("sampling_ratio", 0)), float(call.attr("spatial_scale", 1.0))
    largest = call.attr("mode", "avg") == "max"
    if len(x.shape) != 4 or len(rois.shape) != 2 or static_size(rois.shape[1]) != 4:
        raise call.error(f"regions of shape {list(rois.shape)} in a tensor of shape {list(x.shape)}")
    if 0 < ratio <= MOST_SAMPLES and not largest and all_known(x.shape[2:]):
        return sampling.roi_align(call.node(0), call.node(1), call.node(2), size, ratio, scale, half)
    return on_host(
        call,
        lambda a, r, b: numpy_vision.roi_align(a, r, b, size, ratio, scale, half, largest),
        [(x.elem, (rois.shape[0], x.shape[1], *size))],
        "data-dependent positions",
    )


@lowering("Col2Im")
def _col2im(call: OnnxCall) -> Any:
    x = call.tensor(0)
    image, block = call.ints(1), call.ints(2)
    rank = len(image)
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    pads = call.attr("pads") or [0] * (2 * rank)
    pairs = [(pads[d], pads[d + rank]) for d in range(rank)]
    sizes = concrete(x.shape, "Col2Im")
    if len(sizes) != 3:
        raise call.error(f"blocks of shape {list(sizes)}, which do not have three dimensions")
    n, c, windows = sizes
    if len(block) != rank or min([*image, *block, *strides, *dilations]) < 1 or len(pads) != 2 * rank:
        raise call.error(f"an image of {image} from blocks of {block}")
    counts = [
        (n + sum(pair) - d * (k - 1) - 1) // s + 1
        for n, pair, d, k, s in zip(image, pairs, dilations, block, strides, strict=True)
    ]
    if min(counts) < 1 or math.prod(counts) != windows or c % math.prod(block):
        raise call.error(f"a tensor of shape {list(x.shape)}", f"it should have {counts} blocks of {block}.")
    blocks = reshape(call.node(0), [n, c // math.prod(block), *block, *counts])
    return sampling.overlapped(blocks, image, block, strides, dilations, [a for a, _ in pairs])


def _complex(a: Any) -> Any:
    """Complex numbers from pairs in the last dimension, in the precision of ``a``, at least f32."""
    wide = a.astype(np.float64 if a.dtype == np.float64 else np.float32)
    return wide[..., 0] + (1j * wide[..., 1] if wide.shape[-1] == 2 else 0)


@lowering("DFT")
def _dft(call: OnnxCall) -> Any:
    x = call.tensor(0)
    rank = len(x.shape)
    if call.version >= 20:
        axis = int(call.number(2)) if call.has(2) else -2
    else:
        axis = int(call.attr("axis", 1))
    axis = call.axis(axis, rank)
    inverse, onesided = bool(call.attr("inverse", 0)), bool(call.attr("onesided", 0))
    shape = list(concrete(x.shape, "DFT"))
    length = int(call.number(1)) if call.has(1) else shape[axis]
    if inverse and onesided:
        length = int(call.number(1)) if call.has(1) else 2 * (shape[axis] - 1)
    shape[axis] = length // 2 + 1 if onesided and not inverse else length
    shape[-1] = 1 if inverse and onesided else 2
    dtype = numpy_type(x.elem)

    def run(a: Any) -> Any:
        value = _complex(a)
        if inverse and onesided:
            return np.fft.irfft(value, length, axis=axis)[..., None].astype(dtype)
        made = np.fft.ifft(value, length, axis=axis) if inverse else np.fft.fft(value, length, axis=axis)
        if onesided:
            made = np.take(made, np.arange(length // 2 + 1), axis)
        return np.stack([made.real, made.imag], -1).astype(dtype)

    return on_host(call, run, [(x.elem, shape)], "a Fourier transform", inputs=[0])


@lowering("STFT")
def _stft(call: OnnxCall) -> Any:
    x = call.tensor(0)
    batch, signal = concrete(x.shape, "STFT")[:2]
    hop = int(call.number(1))
    if hop < 1:
        raise call.error(f"frames that are {hop} elements apart")
    window = call.tensor(2) if call.has(2) else None
    length = int(call.number(3)) if call.has(3) else concrete(window.shape, "STFT")[0] if window is not None else signal
    onesided = bool(call.attr("onesided", 1))
    frames = (signal - length) // hop + 1
    bins = length // 2 + 1 if onesided else length
    dtype = numpy_type(x.elem)

    def run(a: Any, w: Any = None) -> Any:
        value = _complex(a.reshape(batch, signal, -1))
        parts = np.lib.stride_tricks.sliding_window_view(value, length, 1)[:, ::hop][:, :frames]
        if w is not None:
            parts = parts * w
        made = np.fft.fft(parts, axis=-1)[..., :bins]
        return np.stack([made.real, made.imag], -1).astype(dtype)

    return on_host(call, run, [(x.elem, (batch, frames, bins, 2))], "a Fourier transform", inputs=[0, 2])


@lowering("MelWeightMatrix")
def _mel(call: OnnxCall) -> Any:
    bins, length, rate = (int(call.number(i)) for i in range(3))
    low, high = float(call.number(3)), float(call.number(4))
    elem = int(call.attr("output_datatype", 1))
    spectrum = length // 2 + 1
    if bins < 1 or length < 1 or rate < 1 or bins * spectrum > 1 << 26:
        raise call.error(f"a matrix of {bins} x {spectrum} elements")
    mel_low, mel_high = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mels = mel_low + np.arange(bins + 2) * ((mel_high - mel_low) / (bins + 2))
    edges = (((length + 1) * (700 * (10 ** (mels / 2595) - 1))) // rate).astype(int)
    weights = np.zeros((spectrum, bins))
    for i in range(bins):
        lower, center, upper = edges[i], edges[i + 1], edges[i + 2]
        if center == lower:
            weights[center, i] = 1
        else:
            weights[lower : center + 1, i] = (np.arange(lower, center + 1) - lower) / (center - lower)
        if upper > center:
            weights[center:upper, i] = (upper - np.arange(center, upper)) / (upper - center)
    return of_array(weights.astype(numpy_type(elem)), elem)
