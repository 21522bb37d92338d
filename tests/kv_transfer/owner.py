"""An owner of blocks in a process of its own, for tests that stop and kill it.

Its standard input has one JSON list a line: a method of the exporter and its arguments, or "raise"
and a block; its standard output answers, and tells the ends of leases."""

import json
import sys
from typing import Any

from prefill_decode.kv_transfer import Exporter
from tests.kv_transfer.pools import make_pool


def say(*words: Any) -> None:
    print(json.dumps(words), flush=True)


def main(address: str, incarnation: str, num_blocks: str, block_bytes: str) -> None:
    pool = make_pool(int(num_blocks), int(block_bytes), seed=1)
    exporter = Exporter(
        pool, address, incarnation, nixl=True, on_end=lambda name, how: say("ended", name, how)
    )
    say("at", exporter.address)
    for line in sys.stdin:
        word, *asked = json.loads(line)
        if word == "raise":
            pool.generations[asked[0]] += 1
        elif word == "offer":
            name, blocks, layers_ready, lease_s = asked
            offer = exporter.offer(name, blocks, layers_ready=layers_ready, lease_s=lease_s)
            say("offer", offer.to_json())
        else:
            getattr(exporter, word)(*asked)
    exporter.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
