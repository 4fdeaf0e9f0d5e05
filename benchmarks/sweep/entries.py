"""The architectures of the sweep, by name."""

from __future__ import annotations

from benchmarks.models import MODELS
from benchmarks.models.densenet import DENSENET121
from benchmarks.sweep.entry import Entry, of_spec
from benchmarks.sweep.library import LIBRARY
from benchmarks.sweep.networks import classic, dense, graph, mobile, perceptron, residual, sequence, unet

_KINDS = {
    "resnet50": "residual",
    "mobilenet_v2": "mobile",
    "inception_v3": "convolution",
    "bert_base": "encoder",
    "gpt2": "decoder",
    "vit_b_16": "vision transformer",
    "llama": "decoder",
}
_OWN = (classic, residual, mobile, dense, unet, sequence, graph, perceptron)
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *(of_spec(spec, _KINDS[name]) for name, spec in MODELS.items()),
        of_spec(DENSENET121, "convolution"),
        *(entry for module in _OWN for entry in module.ENTRIES),
        *LIBRARY,
    )
}
