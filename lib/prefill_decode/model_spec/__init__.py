"""ModelSpec: a decoder's shape, and the counts that follow from it.

Counts:  stored, active and multiplied parameters, bytes of weights, FLOPs of a token, bytes of keys
         and values, for dense layers and mixtures of experts, for multi-head, grouped, multi-query
         and latent attention, with or without windows.
Ignores: vision and audio towers, next-token-prediction modules, buffers that are no parameters
         (rotary tables, DeepSeek-V3's router correction), the scales of int4, int8 and fp8 weights.
Words:   total      every stored parameter once; a tied output matrix is not stored again
         active     total less the routed experts that one token does not use
         matmul     weights in a matrix product for one token: active layers, routers and the output
                    matrix (once, tied or not); no embedding, norm, bias or position table
Source:  the model code in Hugging Face transformers; the tests build each family there and compare.
"""

from prefill_decode.model_spec.arithmetic import figures, figures_text
from prefill_decode.model_spec.parts import (
    LARGEST_COUNT,
    Experts,
    LatentAttention,
    RopeScaling,
    Vectors,
    check_count,
)
from prefill_decode.model_spec.spec import MOST_LAYERS, ModelSpec

__all__ = [
    "LARGEST_COUNT",
    "MOST_LAYERS",
    "Experts",
    "LatentAttention",
    "ModelSpec",
    "RopeScaling",
    "Vectors",
    "check_count",
    "figures",
    "figures_text",
]
