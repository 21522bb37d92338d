"""KV transfer: blocks of cache from the memory of one process into that of another."""

from prefill_decode.kv_transfer.errors import (
    Corrupt,
    DeadlinePassed,
    Expired,
    PeerLost,
    Refused,
    TransferError,
)
from prefill_decode.kv_transfer.layout import Layout
from prefill_decode.kv_transfer.offer import Offer

__all__ = [
    "Corrupt",
    "DeadlinePassed",
    "Expired",
    "Layout",
    "Offer",
    "PeerLost",
    "Refused",
    "TransferError",
]
