"""ONNX Runtime's operators that taskmap refuses, by the reason."""

from __future__ import annotations

from taskmap.graph.importers.onnx.contract import MICROSOFT, REFUSED

_REASONS = {
    "it generates text in a loop; export the model that it calls instead": (
        "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch",
    ),
    "ONNX Runtime itself runs it on GPUs only": (
        "BitmaskBiasDropout", "BitmaskDropout", "ComplexMul", "ComplexMulConj", "DecoderAttention",
        "DecoderMaskedSelfAttention", "DequantizeBFP", "DequantizeWithOrder", "GatedRelativePositionBias",
        "GemmFastGelu", "GemmFloat8", "GemmaRotaryEmbedding", "Irfft", "LongformerAttention",
        "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", "MatMulNBitsMlp", "MatMulNBitsQkv",
        "PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "QOrderedAttention", "QOrderedGelu",
        "QOrderedLayerNormalization", "QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeBFP",
        "QuantizeWithOrder", "RelativePositionBias", "RemovePadding", "RestorePadding", "Rfft", "TorchEmbedding",
    ),
    "it is another vendor's compiled model": ("EPContext", "Snpe"),
    "its weights are packed in a format of ONNX Runtime's own": ("GatherPacked", "MatMulFpQ4"),
    "it keeps a cache or packed sequences for a server": (
        "BifurcationDetector", "DecoderMaskedMultiHeadAttention", "GatedDeltaNet", "SparseAttention",
        "VarlenCausalConvWithState", "VarlenNGramHashMapping",
    ),
    "no tool is known to write it": (
        "AttnLSTM", "IsAllFinite", "MaxpoolWithMask", "MoEGroupRouter", "NGramHashMapping", "SparseToDenseMatMul",
        "WordConvEmbedding",
    ),
}  # fmt: skip
REFUSED.update({(MICROSOFT, name): reason for reason, names in _REASONS.items() for name in names})
REFUSED["com.microsoft.nchwc", ""] = (
    "its tensors lie in memory as the processor that optimised the model needs them; "
    "save the model at the level ORT_ENABLE_EXTENDED"
)
