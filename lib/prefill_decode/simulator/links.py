"""Links: transfers that share a bandwidth evenly while they last.

A transfer of n bytes is over when the link has given n bytes to each that was there all the time.
So one number, bytes given to each so far, and a heap of those at which somebody is done say
everything, whoever comes and goes (processor sharing).
"""

from heapq import heappop, heappush
from math import inf

from prefill_decode.simulator.sequences import Served

SMALLEST_SHARE = 1e-12  # of a transfer: what rounding may leave of it


class Link:
    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.moved_bytes = 0.0
        self._given_bytes = 0.0  # to each that was there all the time
        self._at_s = 0.0
        self._under_way: list[tuple[float, int, Served, float]] = []
        self._serial = 0

    def send(self, now_s: float, served: Served, num_bytes: float) -> None:
        self._give(now_s)
        self._serial += 1
        end = (self._given_bytes + num_bytes, self._serial, served, num_bytes)
        heappush(self._under_way, end)

    @property
    def next_end_s(self) -> float:
        """When the next transfer is over if none begins; infinite for none."""
        if not self._under_way:
            return inf
        left_bytes = self._under_way[0][0] - self._given_bytes
        return self._at_s + len(self._under_way) * left_bytes / self.bandwidth_bytes_per_s

    def arrived(self, now_s: float) -> list[Served]:
        """Whose transfer is over; called at `next_end_s`."""
        self._give(now_s)
        done: list[Served] = []
        while self._under_way:
            end_bytes, _, served, num_bytes = self._under_way[0]
            if done and end_bytes - self._given_bytes > SMALLEST_SHARE * end_bytes:
                break
            heappop(self._under_way)
            self.moved_bytes += num_bytes
            done.append(served)
        if not self._under_way:
            self._given_bytes = 0.0  # rounding starts afresh
        return done

    def _give(self, now_s: float) -> None:
        if self._under_way and now_s > self._at_s:
            each = (now_s - self._at_s) / len(self._under_way)
            if self.bandwidth_bytes_per_s < inf:
                self._given_bytes += each * self.bandwidth_bytes_per_s
        if self._under_way and self.bandwidth_bytes_per_s == inf:
            self._given_bytes = max(end for end, *_ in self._under_way)
        self._at_s = max(now_s, self._at_s)
