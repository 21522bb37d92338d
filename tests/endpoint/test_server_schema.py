"""Whatever the server's own description allows or forbids, no request makes it fail."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from prefill_decode.endpoint.protocol import CompletionRequest
from tests.endpoint.conftest import MODEL, RunningServer
from tests.endpoint.fake_engine import FakeEngine

SLOW = list(HealthCheck)  # a request a case


@pytest.fixture(scope="module")
def running():
    server = RunningServer(FakeEngine())
    server.start()
    yield server
    server.assert_idle()
    server.stop()


def test_no_request_makes_the_server_fail(running):
    described = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    statuses = Counter()
    for found in described.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode if operation.body else [GenerationMode.POSITIVE]:

            @given(operation.as_strategy(generation_mode=mode))
            @settings(max_examples=60, deadline=None, database=None, suppress_health_check=SLOW)
            def answers(case):
                if isinstance(case.body, dict) and "model" in case.body:
                    case.body["model"] = MODEL  # else all end at the model's name
                statuses[case.call_and_validate(checks=[not_a_server_error]).status_code] += 1

            answers()
    assert statuses[200] > 10
    assert statuses[400] > 10


def test_the_description_lists_every_parameter_with_its_rule(running):
    schemas = running.http.get("/openapi.json").json()["components"]["schemas"]
    listed = schemas["CompletionRequest"]["properties"]
    assert set(listed) == set(CompletionRequest.model_fields)
    assert all(field["description"] for field in listed.values())
    assert set(schemas) >= {"ChatRequest", "Message", "TextPart", "StreamOptions"}
