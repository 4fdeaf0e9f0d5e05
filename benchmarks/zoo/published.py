"""Trained models from packages whose wheels carry them: text recognition, speech, kinds of files, detection."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.zoo.entries import Array, Entry

PACKAGES = (
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "magika==1.0.3",
    "nudenet==3.4.2",
    "openwakeword==0.4.0",  # later ones load their models when they are used
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The shapes of a model's inputs by name, and others where sizes are free."""

    shapes: Mapping[str, tuple[int, ...]]
    other: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


_STATE = {"state": (2, 1, 128)}
SIZES = {
    "magika/models/standard_v3_3/model.onnx": Sizes({"bytes": (1, 2048)}, {"bytes": (3, 2048)}),
    "nudenet/320n.onnx": Sizes({"images": (1, 3, 320, 320)}, {"images": (1, 3, 256, 320)}),
    "openwakeword/resources/models/alexa_v0.1.onnx": Sizes({}),
    "openwakeword/resources/models/embedding_model.onnx": Sizes(
        {"input_1": (1, 76, 32, 1)}, {"input_1": (2, 76, 32, 1)}
    ),
    "openwakeword/resources/models/hey_jarvis_v0.1.onnx": Sizes({}),
    "openwakeword/resources/models/hey_mycroft_v0.1.onnx": Sizes({"input_1": (1, 16, 96)}, {"input_1": (2, 16, 96)}),
    "openwakeword/resources/models/melspectrogram.onnx": Sizes({"input": (1, 12400)}, {"input": (1, 16000)}),
    "openwakeword/resources/models/silero_vad.onnx": Sizes(
        {"input": (1, 512), "sr": (), "h": (2, 1, 64), "c": (2, 1, 64)},
        {"input": (1, 1024), "sr": (), "h": (2, 1, 64), "c": (2, 1, 64)},
    ),
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": Sizes({"x": (1, 3, 480, 480)}, {"x": (1, 3, 352, 480)}),
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": Sizes({"x": (1, 3, 48, 320)}, {"x": (1, 3, 48, 192)}),
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": Sizes(
        {"x": (1, 3, 48, 192)}, {"x": (3, 3, 48, 192)}
    ),
    "silero_vad/data/silero_vad.onnx": Sizes({"input": (1, 576), "sr": (), **_STATE}),
    "silero_vad/data/silero_vad_16k_op15.onnx": Sizes({"input": (1, 576), "sr": (), **_STATE}),
    "silero_vad/data/silero_vad_16k_sequence.onnx": Sizes({"input": (20, 576)}, {"input": (33, 576)}),
    "silero_vad/data/silero_vad_half.onnx": Sizes({"input": (1, 576), **_STATE}),
    "silero_vad/data/silero_vad_op18_ifless.onnx": Sizes({"input": (1, 576), "sr": (), **_STATE}),
}
"""The models by their place in a wheel; an input that is not named has the shape that the model declares."""
FINDS_TEXT = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
"""It finds nothing in noise: its results would be next to 0, and rounding alone."""


def fetch(folder: Path) -> list[Path]:
    """The wheels of the packages in ``folder``, downloaded if missing. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        name, version = package.split("==")
        if not list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
            words = ["download", "--quiet", "--no-deps", "--dest", str(folder), package]
            subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return sorted(folder.glob("*.whl"))


def published(folder: Path, seed: int) -> list[Entry]:
    """The models of the wheels in ``folder``, downloaded first if missing."""
    entries = []
    for wheel in fetch(folder):
        with zipfile.ZipFile(wheel) as opened:
            for name in sorted(set(opened.namelist()) & set(SIZES)):
                path = Path(opened.extract(name, folder / "models"))
                entries.append(_entry(name, path, seed))
    return sorted(entries, key=lambda entry: entry.name)


def _entry(name: str, path: Path, seed: int) -> Entry:
    graph = onnx.load(path, load_external_data=False).graph
    sizes, draw = SIZES[name], np.random.default_rng(seed)
    feeds: dict[str, Array]
    other: dict[str, Array] | None
    if name == FINDS_TEXT:
        feeds, other = ({n: page(s, draw) for n, s in shapes.items()} for shapes in (sizes.shapes, sizes.other))
    else:
        feeds = {p.name: _drawn(p, sizes.shapes, draw) for p in graph.input}
        other = {p.name: _drawn(p, sizes.other, draw) for p in graph.input} if sizes.other else None
    package, _, file = name.partition("/")
    stem = Path(file).stem
    return Entry(
        f"{package.split('_')[0]}: {path.parent.name if stem == 'model' else stem}", "published", path, feeds, other
    )


def page(shape: tuple[int, ...], draw: np.random.Generator) -> Array:
    """Lines of strokes like letters, dark on light, from -1 to 1: what a detector of text finds something in."""
    height, width = shape[2:]
    image = np.full((height, width), 0.8)
    for top in range(height // 12, height - 28, 48):
        for left in range(width // 12, width - width // 6, 14):
            if draw.random() < 0.15:  # between words
                continue
            for _ in range(3):
                across, down = draw.integers(0, 9), draw.integers(0, 18)
                if draw.random() < 0.5:
                    image[top : top + 20, left + across : left + across + 3] = -0.8
                else:
                    image[top + down : top + down + 3, left : left + 11] = -0.8
    return (image + 0.04 * draw.standard_normal(shape)).astype(np.float32)


def _drawn(port: onnx.ValueInfoProto, shapes: Mapping[str, tuple[int, ...]], draw: np.random.Generator) -> Array:
    """Random values for an input: bytes, a sampling rate, or a signal."""
    kind = port.type.tensor_type
    shape: Any = shapes.get(port.name) or tuple(d.dim_value for d in kind.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if port.name == "sr":
        return np.array(16000, dtype)
    values = draw.integers(0, 257, shape) if dtype.kind == "i" else draw.standard_normal(shape) * 0.3
    return np.asarray(values).astype(dtype)
