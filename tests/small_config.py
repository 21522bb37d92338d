"""The config.json of a model that starts at once and knows every byte of a text."""

import json
from pathlib import Path
from typing import Any

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def write_small_config(folder: Path, **differences: Any) -> Path:
    """Into a folder, which is made if it is not there."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **differences}))
    return folder
