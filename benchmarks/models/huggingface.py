"""BERT-base and GPT-2 from transformers, with random weights. transformers takes seconds to import and so is imported
only when one of them is built."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.models.spec import Example


def make_bert_base(small: bool) -> Example:
    """128 tokens, 12 layers, 768 wide; small: 19 tokens, 2 layers, 64 wide."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415  (seconds to import, for two models only)

    config = (
        BertConfig(
            vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=64,
        )
        if small
        else BertConfig()
    )  # fmt: skip
    return BertModel(config), (torch.randint(0, config.vocab_size, (1, 19 if small else 128)),), {}


def make_gpt2(small: bool) -> Example:
    """GPT-2 with its language-model head, no key-value cache; 128 tokens; small: 19 tokens, 2 layers, 64 wide."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415  (as above)

    tiny: dict[str, Any] = {
        "vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 0
    }  # fmt: skip
    config = GPT2Config(**tiny, bos_token_id=0) if small else GPT2Config()
    ids = torch.randint(0, config.vocab_size, (1, 19 if small else 128))
    return GPT2LMHeadModel(config), (ids,), {"use_cache": False}
