"""KV transfer: blocks of cache from the memory of one process into that of another."""

from prefill_decode.kv_transfer.channel import Channel, dial
from prefill_decode.kv_transfer.errors import (
    Corrupt,
    DeadlinePassed,
    Expired,
    PeerLost,
    Refused,
    TransferError,
)
from prefill_decode.kv_transfer.exporter import Exporter
from prefill_decode.kv_transfer.layout import Layout
from prefill_decode.kv_transfer.leases import How
from prefill_decode.kv_transfer.listener import Listener
from prefill_decode.kv_transfer.offer import Offer
from prefill_decode.kv_transfer.pool import Pool
from prefill_decode.kv_transfer.reader import Lane, Moved, Reader

__all__ = [
    "Channel",
    "Corrupt",
    "DeadlinePassed",
    "Expired",
    "Exporter",
    "How",
    "Lane",
    "Layout",
    "Listener",
    "Moved",
    "Offer",
    "PeerLost",
    "Pool",
    "Reader",
    "Refused",
    "TransferError",
    "dial",
]
