"""Windows: which layers attend to a sliding window only, in the ways that configs say it."""

from prefill_decode.hf_config.keys import Keys

FULL, SLIDING = "full_attention", "sliding_attention"


def same_window(keys: Keys, default: int | None = None) -> tuple[int | None, ...] | None:
    """One window in every layer, or none."""
    window = keys.window(default)
    types = layer_types(keys, [FULL if window is None else SLIDING] * keys.num_layers)
    if len(set(types)) > 1 or (types[0] == SLIDING) != (window is not None):
        raise ValueError(
            f"{keys.name}: layer_types is not counted where every layer has the same window; "
            f"got {sorted(set(types))} and sliding_window {window}"
        )
    return None if window is None else (window,) * keys.num_layers


def every_nth_full(keys: Keys, pattern: int, default: int) -> tuple[int | None, ...]:
    """Windows in all layers but each `pattern`th, unless layer_types says otherwise."""
    layers = range(1, keys.num_layers + 1)
    types = layer_types(keys, [SLIDING if n % pattern else FULL for n in layers])
    return windows_of(keys, types, keys.window(default))


def late_windows(keys: Keys) -> tuple[int | None, ...] | None:
    """Qwen2's and Qwen3's: from layer max_window_layers on, and only if switched on."""
    late = keys.get("max_window_layers", 28)
    if type(late) is not int or late < 0:
        raise ValueError(f"{keys.name}: max_window_layers must be a whole number; got {late!r:.60}")
    if not keys.flag("use_sliding_window", False):
        keys.read.add("sliding_window")
        windows_of(keys, layer_types(keys, [FULL] * keys.num_layers), None)
        return None
    window, layers = keys.window(4096), range(keys.num_layers)
    default = [SLIDING if window is not None and i >= late else FULL for i in layers]
    return windows_of(keys, layer_types(keys, default), window)


def layer_types(keys: Keys, default: list[str]) -> list[str]:
    types = keys.get("layer_types") or default
    if not isinstance(types, list) or any(kind not in (FULL, SLIDING) for kind in types):
        raise ValueError(
            f"{keys.name}: layer_types must be a list of {FULL} and {SLIDING}; got {types!r:.90}"
        )
    if len(types) != keys.num_layers:
        raise ValueError(
            f"{keys.name}: layer_types has one entry a layer; got {len(types)} for "
            f"{keys.num_layers} layers"
        )
    return types


def windows_of(keys: Keys, types: list[str], window: int | None) -> tuple[int | None, ...]:
    if window is None and SLIDING in types:
        raise ValueError(
            f"{keys.name}: layers with {SLIDING} need sliding_window, which is null or switched off"
        )
    return tuple(window if kind == SLIDING else None for kind in types)
