"""The model zoo: seven networks with random weights, float32, batch 1.

module, args, kwargs = MODELS["resnet50"].build(seed=0)
outputs = as_tensors(module(*args, **kwargs))
"""

from __future__ import annotations

from benchmarks.models.huggingface import make_bert_base, make_gpt2
from benchmarks.models.inception import make_inception_v3
from benchmarks.models.llama import make_llama
from benchmarks.models.mobilenet import make_mobilenet_v2
from benchmarks.models.resnet import make_resnet50
from benchmarks.models.spec import Example, ModelSpec, as_tensors, relative_error, to_float64
from benchmarks.models.vit import make_vit_b_16

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("resnet50", make_resnet50, 25_557_032, "He et al., 2016; stride in the 3x3 convolution"),
        ModelSpec("mobilenet_v2", make_mobilenet_v2, 3_504_872, "Sandler et al., 2018"),
        ModelSpec("inception_v3", make_inception_v3, 23_834_568, "Szegedy et al., 2016; no auxiliary classifier"),
        ModelSpec("bert_base", make_bert_base, 109_482_240, "transformers BertModel(BertConfig())"),
        ModelSpec("gpt2", make_gpt2, 124_439_808, "transformers GPT2LMHeadModel(GPT2Config())"),
        ModelSpec("vit_b_16", make_vit_b_16, 86_567_656, "Dosovitskiy et al., 2021"),
        ModelSpec("llama", make_llama, 54_927_872, "Touvron et al., 2023; 8 layers, 512 wide, grouped-query"),
    )
}

__all__ = ["MODELS", "Example", "ModelSpec", "as_tensors", "relative_error", "to_float64"]
