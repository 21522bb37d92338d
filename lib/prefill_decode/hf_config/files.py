"""Files: configs on disk, those that ship with the library among them."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from prefill_decode.did_you_mean import did_you_mean
from prefill_decode.hf_config.families import decoder_part, from_config
from prefill_decode.hf_config.keys import Keys
from prefill_decode.model_spec import ModelSpec

LARGEST_FILE_BYTES = 10_000_000


def read(path: Path | str, dtype: str | None = None) -> ModelSpec:
    """ModelSpec of a config.json, or of the folder that holds one; named after the folder."""
    config, name = read_config(path)
    return from_config(config, name, dtype)


def read_config(path: Path | str) -> tuple[Mapping[str, Any], str]:
    """The object in a config.json, or in that of a folder, and the model's name."""
    path = Path(path)
    try:
        path = path / "config.json" if path.is_dir() else path
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        config = _parsed(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: a model needs a readable config.json; {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: a config.json holds one object; got a {type(config).__name__}")
    return config, name or "model"


def _parsed(path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise ValueError(f"it has at most {LARGEST_FILE_BYTES} bytes; got {path.stat().st_size}")
    return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; of two values for one key either might be meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"a key is given once; got {twice!r:.60} twice")
    return found


def names() -> list[str]:
    """Models whose configs ship with the library, smallest first."""
    return [model.name for model in shipped()]


def shipped() -> list[ModelSpec]:
    folder = files("prefill_decode") / "models"
    paths = [Path(str(item)) for item in folder.iterdir() if item.name.endswith(".json")]
    return sorted((read(path) for path in paths), key=lambda model: model.total_params)


def get(name: str) -> ModelSpec:
    """A shipped model by its name. ValueError names the nearest one."""
    found = {model.name: model for model in shipped()}
    if not isinstance(name, str) or name not in found:
        hint = did_you_mean(name, found)
        raise ValueError(f"model must be one of {', '.join(found)}; got {name!r}{hint}")
    return found[name]


def find(word: str, dtype: str | None = None) -> ModelSpec:
    """A shipped model by its name, or the one in a config.json or in the folder that holds it."""
    if word in names():
        model = get(word)
        return model if dtype is None else model.with_dtype(dtype)
    try:
        path = Path(word)
        is_path = path.exists() or path.suffix == ".json" or path.name != word
    except (OSError, ValueError) as error:
        raise ValueError(f"{word!r:.60} is no path to a config.json; {error}") from error
    if is_path:
        return read(path, dtype)
    hint = did_you_mean(word, names())
    raise ValueError(
        f"a model is a path to a config.json or one of {', '.join(names())}; got {word!r:.60}{hint}"
    )


def most_positions(path: Path) -> int | None:
    """The longest sequence of a config.json, or of that in a folder, as its author has set it;
    None where there is no such file, or no limit in it. How rotary positions are stretched adds
    nothing: newer configs give the length that is reached so."""
    if not (path.is_file() or (path / "config.json").is_file()):
        return None
    config, name = read_config(path)
    keys = Keys(decoder_part(config, name), name)
    if keys.get("max_position_embeddings") is None:
        return None
    return keys.count("max_position_embeddings")
