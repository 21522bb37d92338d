"""Pool: the memory that may be moved, and nothing else, named by block."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefill_decode.kv_transfer.layout import Layout
from prefill_decode.kv_transfer.wire import MOST_PIECES

WARM_BYTES = 2**19  # what is still in a core's cache when it has been read once
MOST_SPANS = MOST_PIECES - 3  # a header and two digests go with them


class Pool:
    """`regions`: layer 0 keys, layer 0 values, layer 1 keys and so on, each [num_blocks,
    block_bytes]. `generations`: [num_blocks], raised by their owner whenever a block gets a new
    first holder; shared memory, read here at any time."""

    def __init__(
        self,
        layout: Layout,
        regions: Sequence[NDArray[np.uint8]],
        generations: NDArray[np.int64],
    ) -> None:
        self.layout, self.regions, self.generations = layout, tuple(regions), generations
        self.num_blocks = len(generations)
        if len(regions) != 2 * layout.num_layers:
            raise ValueError(
                f"{layout.num_layers} layers have {2 * layout.num_layers} regions, keys and "
                f"values; got {len(regions)}"
            )
        shape = (self.num_blocks, layout.block_bytes)
        if generations.dtype != np.int64 or not generations.flags.c_contiguous:
            raise ValueError(
                f"generations are contiguous int64; got {generations.dtype}: take "
                "numpy.frombuffer of an array('q')"
            )
        for region in regions:
            fine = region.flags.c_contiguous and region.flags.writeable
            if region.dtype != np.uint8 or region.shape != shape or not fine:
                raise ValueError(
                    f"a region is writable contiguous uint8 of the shape {shape}; got "
                    f"{region.dtype} of the shape {region.shape}"
                )
        self._bytes = [region.reshape(-1).data for region in self.regions]

    @property
    def region_bytes(self) -> int:
        """Of one block in all regions."""
        return len(self.regions) * self.layout.block_bytes

    def check(self, blocks: Sequence[int]) -> None:
        """ValueError for a block that is not here, or named twice."""
        for block in blocks:
            if type(block) is not int or not 0 <= block < self.num_blocks:
                raise ValueError(f"blocks are from 0 to {self.num_blocks - 1}; got {block!r:.80}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise ValueError(f"blocks are named once each, at least one; got {len(blocks)}")

    def generations_of(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.generations[list(blocks)].tolist())

    def views(self, region: int, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The memory of these spans of a region."""
        whole = self._bytes[region]
        return [whole[start:stop] for start, stop in spans]


class Walk:
    """Through the bytes of one region's blocks in the order of a table, adjacent blocks as one."""

    def __init__(self, blocks: Sequence[int], block_bytes: int) -> None:
        self._runs = runs(blocks, block_bytes)
        self._index = 0
        self._done = 0  # bytes of the run at the index
        self.offset = 0
        self.total = len(blocks) * block_bytes

    def take(self, most_bytes: int, most_spans: int | None = None) -> list[tuple[int, int]]:
        """The next spans (start, stop) of the region, so many bytes together; fewer only at the
        end, or where there would be too many spans."""
        spans: list[tuple[int, int]] = []
        while most_bytes > 0 and self._index < len(self._runs) and len(spans) != most_spans:
            start, stop = self._runs[self._index]
            start += self._done
            num_bytes = min(stop - start, most_bytes)
            spans.append((start, start + num_bytes))
            most_bytes -= num_bytes
            self.offset += num_bytes
            self._done += num_bytes
            if start + num_bytes == stop:
                self._index, self._done = self._index + 1, 0
        return spans

    def take_groups(self, most_bytes: int) -> list[list[tuple[int, int]]]:
        """The next so many bytes, or all that are left, in groups for one call each."""
        groups = []
        end = min(self.offset + most_bytes, self.total)
        while self.offset < end:
            groups.append(self.take(min(WARM_BYTES, end - self.offset), MOST_SPANS))
        return groups

    def restart(self) -> None:
        """For the next region."""
        self._index = self._done = self.offset = 0


def runs(blocks: Sequence[int], block_bytes: int) -> list[tuple[int, int]]:
    """Where they lie in a region: (start, stop) in bytes, blocks that follow one another as one."""
    if not len(blocks):
        return []
    table = np.fromiter(blocks, np.int64, len(blocks))
    breaks = np.flatnonzero(np.diff(table) != 1) + 1
    starts = table[np.concatenate(([0], breaks))]
    stops = table[np.concatenate((breaks - 1, [-1]))] + 1
    ends = ((block_bytes * each).tolist() for each in (starts, stops))
    return list(zip(*ends, strict=True))
