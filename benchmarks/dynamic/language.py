"""Small transformers from the library of that name, with batch and length left open."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.dynamic.case import Case, Inputs
from benchmarks.dynamic.sequences import tokens

SMALL: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


class Plain(nn.Module):
    """A model called with ``names`` for its inputs, without a cache, whose result is one tensor."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...], result: str, **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.result, self.fixed = inner, names, result, fixed

    def forward(self, *args: Tensor) -> Tensor:
        made: Tensor = getattr(self.inner(**dict(zip(self.names, args, strict=True)), **self.fixed), self.result)
        return made


def of_library(
    kind: str, config: str, names: tuple[str, ...] = ("input_ids",), result: str = "last_hidden_state",
    settings: dict[str, Any] | None = None, **fixed: Any,
) -> Callable[[], nn.Module]:  # fmt: skip
    """A maker of the model class ``kind`` of the library."""

    def make() -> nn.Module:
        library = import_module("transformers")
        made = getattr(library, config)(**(SMALL if settings is None else settings))
        return Plain(getattr(library, kind)(made).eval(), names, result, **fixed)

    return make


def masked_tokens(batch: int, length: int) -> Inputs:
    """Token numbers and a mask of ones."""
    return (*tokens(batch, length), torch.ones(batch, length, dtype=torch.int64))


def two_texts(batch: int, source: int, target: int) -> Inputs:
    """Token numbers for an encoder and for a decoder."""
    return (*tokens(batch, source), *tokens(batch, target))


GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
LLAMA = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0}
DEBERTA = {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
WHISPER = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 40,
    "num_mel_bins": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
SOUND = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 30,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4],
    "decoder_hidden_size": 32, "num_labels": 5,
}  # fmt: skip
MASK = ("input_ids", "attention_mask")
TEXT = (2, 11), (3, 17)
CASES = (
    Case("bert", of_library("BertModel", "BertConfig", MASK), masked_tokens, *TEXT),
    Case("bert_script", of_library("BertModel", "BertConfig"), tokens, *TEXT, script=True),
    Case(
        "distilbert",
        of_library(
            "DistilBertModel",
            "DistilBertConfig",
            MASK,
            settings={"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        ),
        masked_tokens,
        *TEXT,
    ),
    Case("roberta", of_library("RobertaModel", "RobertaConfig"), tokens, *TEXT),
    Case("deberta", of_library("DebertaV2Model", "DebertaV2Config", settings=DEBERTA), tokens, *TEXT),
    Case(
        "gpt2",
        of_library("GPT2LMHeadModel", "GPT2Config", result="logits", settings=GPT, use_cache=False),
        tokens,
        *TEXT,
    ),
    Case(
        "llama",
        of_library("LlamaForCausalLM", "LlamaConfig", result="logits", settings=LLAMA, use_cache=False),
        tokens,
        *TEXT,
    ),
    Case("t5_encoder", of_library("T5EncoderModel", "T5Config", settings=T5), tokens, *TEXT),
    Case(
        "t5",
        of_library(
            "T5ForConditionalGeneration", "T5Config", ("input_ids", "decoder_input_ids"), "logits", T5, use_cache=False
        ),
        two_texts,
        (2, 11, 5),
        (3, 17, 8),
    ),
    Case(
        "whisper_decoder",
        of_library(
            "WhisperModel", "WhisperConfig", ("input_features", "decoder_input_ids"), settings=WHISPER, use_cache=False
        ),
        lambda n, m: (torch.randn(n, 20, 80), *tokens(n, m)),
        (2, 5),
        (3, 8),
    ),
    Case(
        "wav2vec2",
        of_library("Wav2Vec2ForCTC", "Wav2Vec2Config", ("input_values",), "logits", SOUND),
        lambda n, m: (torch.randn(n, m),),
        (2, 640),
        (1, 1000),
    ),
    Case(
        "segformer",
        of_library("SegformerForSemanticSegmentation", "SegformerConfig", ("pixel_values",), "logits", SEGFORMER),
        lambda n, h, w: (torch.randn(n, 3, h, w),),
        (2, 64, 96),
        (1, 96, 64),
    ),
)
