"""Pacing: a link of a given speed, made in user space by waiting before each piece is sent.

A piece is let through when its last byte would have arrived. Short waits that were too long are
made up for within a transfer, idle time is not."""

import threading
import time
from math import inf

CREDIT_S = 0.005
IDLE_S = 0.002  # between a piece that was let through and the next: longer, and the link was idle
SLOTS_PER_S = 200.0  # pieces a second at most, so that the flow is smooth
LEAST_PIECE_BYTES = 4096


class Pace:
    """Shared by all that send over the link."""

    def __init__(self, bytes_per_s: float) -> None:
        if not 0 < bytes_per_s < inf:
            raise ValueError(f"a link has a speed above zero; got {bytes_per_s} bytes/s")
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0  # when the link has sent all that it was given
        self._let_at = 0.0  # when the last piece was let through

    @property
    def piece_bytes(self) -> int:
        """As much as a piece should have."""
        return max(LEAST_PIECE_BYTES, int(self.bytes_per_s / SLOTS_PER_S))

    def begin(self) -> None:
        """A transfer begins: what others were late by is not made up for in it."""
        with self._lock:
            self._let_at = -inf

    def wait_for(self, num_bytes: int) -> None:
        """Returns when so many more bytes would have arrived."""
        with self._lock:
            now = time.monotonic()
            credit_s = CREDIT_S if now - self._let_at < IDLE_S else 0.0
            begins = max(self._free_at, now - credit_s)
            wait_s = begins + num_bytes / self.bytes_per_s - now
            self._free_at = now + wait_s
        if wait_s > 0:
            time.sleep(wait_s)
        with self._lock:
            self._let_at = time.monotonic()
