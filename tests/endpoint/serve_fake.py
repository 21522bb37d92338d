"""A server of its own process, on an engine without a model; argv: grace_s, steps until it fails.

Prints its port when it is ready."""

import asyncio
import sys

from prefill_decode.endpoint.doors import Limits
from prefill_decode.endpoint.running import bind, run
from prefill_decode.endpoint.server import Served, create_app
from prefill_decode.endpoint.server_metrics import ServerMetrics
from prefill_decode.endpoint.service import Service
from prefill_decode.endpoint.tokenizer import ByteTokenizer
from tests.endpoint.fake_engine import FakeEngine


class FailingEngine(FakeEngine):
    """Fails in the step after so many."""

    def __init__(self, steps: int) -> None:
        super().__init__(capacity_tokens=1_000_000, pause_s=0.005)
        self.good_steps = steps

    def step(self):
        if self.steps >= self.good_steps:
            raise RuntimeError("the device is gone")
        return super().step()


def main(grace_s: float, steps: int) -> int:
    service = Service(FailingEngine(steps), ServerMetrics())
    app = create_app(Served(service, ByteTokenizer(512), "tiny"))
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    ready = lambda: print(port, flush=True)  # noqa: E731
    return asyncio.run(run(app, service, bound, Limits(), grace_s, ready))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
