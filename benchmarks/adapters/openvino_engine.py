"""OpenVINO: its runtime on the exported, stateful model, one inference a step.

As OpenVINO's own generation library does, the last token's row is cut out before the product with
the output matrix. The cache (a variable of the model) is float32, set to noise of CONTEXT tokens
before each decode step, outside the time."""

from collections.abc import Callable
from statistics import median

import numpy as np
import openvino
from openvino import opset13 as ops
from serve import DECODE_STEPS, Options, serve, time_of


class OpenVino:
    version = openvino.__version__.split("-")[0]

    def __init__(self, options: Options) -> None:
        core = openvino.Core()
        folder = options.peers / "models" / f"{options.model}-openvino"
        model = core.read_model(folder / "openvino_model.xml")
        _keep_last_row(model)
        settings = {
            "INFERENCE_NUM_THREADS": options.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
        }
        self.compiled = core.compile_model(model, "CPU", settings)
        self.prefills = self.compiled.create_infer_request()
        self.decodes = {}  # (batch, context_tokens): a request whose cache holds as much

    def prefill(self, tokens: int) -> float:
        self.prefills.reset_state()
        return time_of(self._step(self.prefills, 1, tokens, 0))

    def decode(self, batch: int, context_tokens: int) -> float:
        """Steps follow one another, so the context grows by a few tokens."""
        if (batch, context_tokens) not in self.decodes:
            self.decodes[batch, context_tokens] = self.compiled.create_infer_request()
        request = self.decodes[batch, context_tokens]
        request.reset_state()
        for state in request.query_state():
            shape = [batch, *state.state.shape[1:2], context_tokens, state.state.shape[3]]
            state.state = openvino.Tensor(np.random.randn(*shape).astype(np.float32))
        steps = [self._step(request, batch, 1, context_tokens + i) for i in range(DECODE_STEPS + 1)]
        return median([time_of(step) for step in steps][1:])

    def _step(self, request, batch: int, tokens: int, cached: int) -> Callable[[], object]:
        inputs = {
            "input_ids": np.random.randint(0, 32000, (batch, tokens)),
            "attention_mask": np.ones((batch, cached + tokens), np.int64),
            "position_ids": np.tile(np.arange(cached, cached + tokens), (batch, 1)),
            "beam_idx": np.arange(batch, dtype=np.int32),
        }
        return lambda: request.infer(inputs)


def _keep_last_row(model: openvino.Model) -> None:
    product = model.output("logits").get_node().input_value(0).get_node()
    rows = product.input_value(0)
    last = ops.slice(rows, [-1], [np.iinfo(np.int64).max], [1], [1])
    product.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


if __name__ == "__main__":
    serve(OpenVino)
