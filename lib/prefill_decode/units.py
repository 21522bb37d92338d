"""Units: the few factors and formats that the whole book shares.

Inside the library every quantity is in SI base units (seconds, bytes, FLOP) and its name says so.
These factors convert once, where a number is read from a datasheet or shown to a person."""

from math import isnan

GB = 1e9
GIB = 2**30  # only for "does it fit": memory is sold in GiB
MS = 1e-3
GFLOP = 1e9
GIGABIT = 1e9 / 8  # bytes: links are sold in Gb/s

_TIME_STEPS = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]
_SI_STEPS = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
UNKNOWN = "unknown"
SMALLEST_PLAIN = 1e-4  # below, zeros hide the digits


def format_significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits: 0.0312, 4.56, 155, 3680; 3.70e-15 if very small."""
    if isnan(value):
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) < SMALLEST_PLAIN:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - _exponent(value, digits))
    return f"{value:.{decimals}f}"


def counted(count: int, thing: str) -> str:
    """counted(1, "KV head") is "1 KV head", counted(2, "KV head") "2 KV heads"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def format_seconds(time_s: float) -> str:
    """A time in the unit that keeps it between 1 and 1000: 41.8 ms."""
    return _format_scaled(time_s, _TIME_STEPS)


def seconds_unit(time_s: float) -> tuple[float, str]:
    """The factor and name of the unit that keeps a time between 1 and 1000: (0.001, 'ms')."""
    return _scale(time_s, _TIME_STEPS)


def format_si(value: float, unit: str) -> str:
    """A quantity with its SI prefix: format_si(155e9, 'FLOP/s') is '155 GFLOP/s'."""
    return _format_scaled(value, [(factor, prefix + unit) for factor, prefix in _SI_STEPS])


def format_bytes(num_bytes: float) -> str:
    """Bytes in decimal units: 886 MB, never MiB."""
    return format_si(num_bytes, "B")


def format_bits_per_s(bytes_per_s: float) -> str:
    """A link's speed as it is sold, in bits: 12.5e9 bytes/s are '100 Gb/s'."""
    return format_si(8 * bytes_per_s, "b/s")


def _format_scaled(value: float, steps: list[tuple[float, str]]) -> str:
    if isnan(value):
        return UNKNOWN
    factor, unit = _scale(value, steps)
    return f"{format_significant(value / factor)} {unit}"


def _scale(value: float, steps: list[tuple[float, str]]) -> tuple[float, str]:
    rounded = float(f"{value:.3g}")  # so that 999.9 ms becomes 1.00 s
    return next((step for step in steps if abs(rounded) >= step[0]), steps[-1])


def _exponent(value: float, digits: int) -> int:
    """The power of ten of `value` once it is rounded to `digits` significant digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])
