"""Architectures of transformers with random weights, at the size of a published model.

The small variant has the widths of the full one, but two layers (a block of each stage), and short texts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor, nn

from benchmarks.models import as_tensors
from benchmarks.sweep.entry import Drawer, Entry, Maker, images, rows, tokens

Settings = dict[str, Any]
_DEPTHS = (
    "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "n_layers",
    "num_decoder_layers",
)  # fmt: skip


class Called(nn.Module):
    """A model of the library called with ``names`` for its inputs; its result is the tuple of its tensors."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...], fixed: Settings) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.names, args, strict=True))
        return as_tensors(self.inner(**given, **self.fixed, return_dict=False))


def shallow(config: Any) -> None:
    """Leaves two layers of each stack or one block of each stage; a model that reads certain layers keeps all."""
    if getattr(config, "backbone_out_indices", None):
        return
    for name in ("depths", "num_block_repeats"):
        if getattr(config, name, None):
            setattr(config, name, [1] * len(getattr(config, name)))
            return
    for name in _DEPTHS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(2, getattr(config, name)))


def of_library(
    model: str, config: str, settings: Settings, names: tuple[str, ...] = ("pixel_values",), **fixed: Any
) -> Maker:
    """Makes the class ``model`` of the library, configured as ``config`` with these settings."""

    def make(small: bool) -> nn.Module:
        library = import_module("transformers")  # takes seconds
        made = getattr(library, config)(**settings)
        if small:
            shallow(made)
        return Called(getattr(library, model)(made), names, fixed)

    return make


def _vision(name: str, prefix: str, source: str, settings: Settings, kind: str = "vision transformer",
            draw: Drawer | None = None, suffix: str = "ForImageClassification") -> Entry:  # fmt: skip
    return Entry(name, kind, of_library(prefix + suffix, f"{prefix}Config", settings), draw or images(224, 224), source)


def _text(name: str, kind: str, prefix: str, source: str, settings: Settings,
          suffix: str = "Model", vocabulary: int = 30000, length: int = 128, texts: int = 1,
          **fixed: Any) -> Entry:  # fmt: skip
    names = ("input_ids", "decoder_input_ids")[:texts]
    maker = of_library(prefix + suffix, f"{prefix}Config", settings, names, **fixed)
    return Entry(name, kind, maker, tokens(vocabulary, length, texts), source)


_POOL = {"depths": [2, 2, 6, 2]}
VISION = (
    _vision("regnety_1.6gf", "RegNet", "Radosavovic et al., 2020", {
        "hidden_sizes": [48, 120, 336, 888], "depths": [2, 6, 17, 2], "groups_width": 24, "layer_type": "y",
    }, "residual"),
    _vision("bit_50", "Bit", "Kolesnikov et al., 2019", {}, "residual"),
    _vision("hgnet_v2", "HGNetV2", "PaddlePaddle, 2023", {}, "convolution"),
    _vision("mobilenet_v1", "MobileNetV1", "Howard et al., 2017", {}, "mobile"),
    _vision("efficientnet_b0", "EfficientNet", "Tan and Le, 2019", {
        "width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280,
        "dropout_rate": 0.2,
    }, "mobile"),
    _vision("convnext_tiny", "ConvNext", "Liu et al., 2022", {}, "convolution"),
    _vision("convnextv2_tiny", "ConvNextV2", "Woo et al., 2023", {}, "convolution"),
    _vision("poolformer_s12", "PoolFormer", "Yu et al., 2021", _POOL, "convolution"),
    _vision("swin_tiny", "Swin", "Liu et al., 2021", {}),
    _vision("swinv2_tiny", "Swinv2", "Liu et al., 2021", {"image_size": 256, "window_size": 8}, draw=images(256, 256)),
    _vision("deit_small", "DeiT", "Touvron et al., 2020", {
        "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536,
    }),
    _vision("beit_base", "Beit", "Bao et al., 2021", {"use_relative_position_bias": True}),
    _vision("dinov2_small", "Dinov2", "Oquab et al., 2023", {
        "hidden_size": 384, "num_attention_heads": 6, "image_size": 224, "patch_size": 14,
    }),
    _vision("levit_256", "Levit", "Graham et al., 2021", {
        "hidden_sizes": [256, 384, 512], "num_attention_heads": [4, 6, 8], "depths": [4, 4, 4],
    }),
    _vision("mobilevit_small", "MobileViT", "Mehta and Rastegari, 2021", {}, "mobile", images(256, 256)),
    _vision("mobilevitv2", "MobileViTV2", "Mehta and Rastegari, 2022", {}, "mobile", images(256, 256)),
    _vision("focalnet_tiny", "FocalNet", "Yang et al., 2022", {}),
    _vision("cvt_13", "Cvt", "Wu et al., 2021", {}),
    _vision("pvt_v2_b0", "PvtV2", "Wang et al., 2021", {}),
    _vision("swiftformer_s", "SwiftFormer", "Shaker et al., 2023", {}, "mobile"),
    _vision("hiera_tiny", "Hiera", "Ryali et al., 2023", {"depths": [1, 2, 7, 2]}),
    _vision("segformer_b0", "Segformer", "Xie et al., 2021", {"num_labels": 19}, "segmentation", images(256, 256),
            "ForSemanticSegmentation"),
    _vision("yolos_tiny", "Yolos", "Fang et al., 2021", {
        "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "image_size": [256, 256],
        "use_mid_position_embeddings": False,
    }, "detection", images(256, 256), "ForObjectDetection"),
    _vision("dpt_small", "DPT", "Ranftl et al., 2021", {
        "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "image_size": 224,
        "neck_hidden_sizes": [48, 96, 192, 384], "fusion_hidden_size": 64,
    }, "segmentation", None, "ForDepthEstimation"),
    _vision("swin2sr", "Swin2SR", "Conde et al., 2022", {
        "image_size": 64, "embed_dim": 60, "depths": [6, 6, 6, 6], "num_heads": [6, 6, 6, 6], "mlp_ratio": 2.0,
        "upscale": 2, "upsampler": "pixelshuffledirect",
    }, "super-resolution", images(64, 64), "ForImageSuperResolution"),
    _vision("clip_vision", "CLIPVision", "Radford et al., 2021", {}, suffix="Model"),
)  # fmt: skip

_LLAMA: Settings = {
    "vocab_size": 32000, "hidden_size": 576, "num_hidden_layers": 12, "num_attention_heads": 9,
    "intermediate_size": 1536, "num_key_value_heads": 3, "head_dim": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_EXPERTS: Settings = {**_LLAMA, "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
                      "num_key_value_heads": 2}  # fmt: skip
TEXT = (
    _text("distilbert", "encoder", "DistilBert", "Sanh et al., 2019", {}),
    _text("albert_base", "encoder", "Albert", "Lan et al., 2019", {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
    }),
    _text("electra_small", "encoder", "Electra", "Clark et al., 2020", {}),
    _text("deberta_v3_small", "encoder", "DebertaV2", "He et al., 2021", {
        "vocab_size": 30001, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
        "num_hidden_layers": 6, "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
    }),
    _text("mpnet_base", "encoder", "MPNet", "Song et al., 2020", {}),
    _text("xlnet_base", "encoder", "XLNet", "Yang et al., 2019", {
        "vocab_size": 32000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072,
    }),
    _text("fnet_base", "encoder", "FNet", "Lee-Thorp et al., 2021", {}),
    _text("squeezebert", "encoder", "SqueezeBert", "Iandola et al., 2020", {}),
    _text("mobilebert", "encoder", "MobileBert", "Sun et al., 2020", {}),
    _text("modernbert_base", "encoder", "ModernBert", "Warner et al., 2024", {"vocab_size": 50368}),
    _text("convbert_base", "encoder", "ConvBert", "Jiang et al., 2020", {}),
    _text("roformer", "encoder", "RoFormer", "Su et al., 2021", {}),
    _text("nystromformer", "encoder", "Nystromformer", "Xiong et al., 2021", {}, length=448),
    _text("gpt_neo_125m", "decoder", "GPTNeo", "Black et al., 2021", {
        "hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]],
        "max_position_embeddings": 512,
    }, use_cache=False),
    _text("opt_125m", "decoder", "OPT", "Zhang et al., 2022", {}, use_cache=False),
    _text("pythia_160m", "decoder", "GPTNeoX", "Biderman et al., 2023", {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    }, use_cache=False),
    _text("bloom_small", "decoder", "Bloom", "Le Scao et al., 2022; 12 layers, 768 wide", {
        "vocab_size": 32000, "hidden_size": 768, "n_layer": 12, "n_head": 12,
    }, use_cache=False),
    _text("smollm_135m", "decoder", "Llama", "Allal et al., 2024; 12 layers", _LLAMA, "ForCausalLM", use_cache=False),
    _text("qwen3_small", "decoder", "Qwen3", "Yang et al., 2025; 12 layers, 576 wide", _LLAMA, use_cache=False),
    _text("gemma_small", "decoder", "Gemma", "Gemma team, 2024; 12 layers, 576 wide", _LLAMA, use_cache=False),
    _text("t5_small", "encoder-decoder", "T5", "Raffel et al., 2019", {}, texts=2, use_cache=False),
    _text("t5_encoder", "encoder", "T5", "Raffel et al., 2019", {}, "EncoderModel"),
    _text("bart_base", "encoder-decoder", "Bart", "Lewis et al., 2019", {
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    }, texts=2, length=64, use_cache=False),
    _text("mixtral_small", "mixture of experts", "Mixtral", "Jiang et al., 2024; 4 layers, 512 wide", {
        **_EXPERTS, "num_local_experts": 8,
    }, use_cache=False),
    _text("qwen2_moe_small", "mixture of experts", "Qwen2Moe", "Qwen team, 2024; 4 layers, 512 wide", {
        **_EXPERTS, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 384,
        "shared_expert_intermediate_size": 768,
    }, use_cache=False),
    _text("mamba2_small", "state space", "Mamba2", "Dao and Gu, 2024; 4 layers, 512 wide", {
        "vocab_size": 32000, "hidden_size": 512, "num_hidden_layers": 4, "num_heads": 16, "head_dim": 64,
        "state_size": 64, "n_groups": 1, "chunk_size": 64,
    }, use_cache=False),
    _text("lfm2_small", "state space", "Lfm2", "Liquid AI, 2025; 6 layers, 512 wide", {
        "vocab_size": 32000, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 1536,
    }, use_cache=False),
)  # fmt: skip


def _sound(name: str, prefix: str, source: str, settings: Settings, argument: str, *shape: int,
           suffix: str = "Model", kind: str = "speech", **fixed: Any) -> Entry:  # fmt: skip
    maker = of_library(prefix + suffix, f"{prefix}Config", settings, (argument,), **fixed)
    return Entry(name, kind, maker, rows(shape), source)


class _Encoder(nn.Module):
    """The encoder of an encoder-decoder."""

    def __init__(self, whole: Called) -> None:
        super().__init__()
        self.inner: Any = whole.inner.get_encoder()  # type: ignore[operator]  # a method of the library's

    def forward(self, x: Tensor) -> Tensor:
        (y,) = as_tensors(self.inner(x, return_dict=False))
        return y


def _whisper(small: bool) -> nn.Module:
    made = of_library("WhisperModel", "WhisperConfig", {})(small)
    assert isinstance(made, Called)
    return _Encoder(made)


SOUND = (
    Entry("whisper_tiny_encoder", "speech", _whisper, rows((80, 3000)), "Radford et al., 2022"),
    _sound("wav2vec2_base", "Wav2Vec2", "Baevski et al., 2020", {}, "input_values", 16000),
    _sound("hubert_base", "Hubert", "Hsu et al., 2021", {}, "input_values", 16000),
    _sound("wav2vec2_conformer", "Wav2Vec2Conformer", "Wang et al., 2020; 4 layers, 512 wide", {
        "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048,
        "position_embeddings_type": "rotary",
    }, "input_values", 16000),
    _sound("ast", "AST", "Gong et al., 2021; 256 frames", {"max_length": 256}, "input_values", 256, 128),
    _sound("hifigan", "SpeechT5HifiGan", "Kong et al., 2020", {}, "spectrogram", 40, 80, suffix=""),
    _sound("patchtst", "PatchTST", "Nie et al., 2022", {
        "num_input_channels": 7, "context_length": 512, "patch_length": 16, "patch_stride": 8, "d_model": 128,
        "num_hidden_layers": 3, "num_attention_heads": 16, "ffn_dim": 256,
    }, "past_values", 512, 7, kind="time series"),
    _sound("patchtsmixer", "PatchTSMixer", "Ekambaram et al., 2023", {
        "num_input_channels": 7, "context_length": 512, "patch_length": 16, "patch_stride": 16, "d_model": 64,
        "num_layers": 8,
    }, "past_values", 512, 7, kind="time series"),
)  # fmt: skip
LIBRARY = (*VISION, *TEXT, *SOUND)
