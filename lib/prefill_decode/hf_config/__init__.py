"""hf_config: a Hugging Face config.json -> ModelSpec, family by family.

Reads:   the decoder of the model types in FAMILIES; of a config with a text_config, that decoder
         alone. Null means "not given". What a config leaves out takes the family's default where
         that is a fact of the family (tied or not, biases, head size, windows); a size that is
         left out is an error, and so is a key that would change the counts and is not read.
Refuses: every other architecture, by name. A guess would be wrong silently.
Source:  the configuration and model code of Hugging Face transformers 5, with which the tests
         compare every family; `moe_layer_freq` as in DeepSeek's published modelling code.
"""

from prefill_decode.hf_config.decoder import rope_scaling
from prefill_decode.hf_config.families import FAMILIES, from_config
from prefill_decode.hf_config.files import (
    find,
    get,
    most_positions,
    names,
    read,
    read_config,
    shipped,
)
from prefill_decode.hf_config.keys import HARMLESS, Keys

__all__ = [
    "FAMILIES",
    "HARMLESS",
    "Keys",
    "find",
    "from_config",
    "get",
    "most_positions",
    "names",
    "read",
    "read_config",
    "rope_scaling",
    "shipped",
]
