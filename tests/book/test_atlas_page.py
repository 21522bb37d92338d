"""The atlas page: what is shaded, marked and measured."""

from xml.etree import ElementTree

import pytest

from prefill_decode.book.atlas_page import atlas_table, measured_table
from prefill_decode.hardware import accelerators
from prefill_decode.hf_config import shipped


def cells(context_tokens: int) -> list[list[str]]:
    document = ElementTree.fromstring(atlas_table(context_tokens))
    return [["".join(cell.itertext()) for cell in row] for row in document.iter("tr")]


def test_every_model_meets_every_accelerator_with_a_known_peak():
    header, *rows = cells(32)
    known = [a.name for a in accelerators() if a.peak_bf16_flops_per_s is not None]
    assert header == ["model", *known]
    assert [row[0] for row in rows] == [model.name for model in shipped()]


def test_models_that_need_more_devices_or_room_or_experts_are_marked():
    header, *rows = cells(8192)
    by_name = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    assert by_name["llama-3.1-8b"]["H100 SXM"].isdigit()
    assert by_name["llama-2-7b"]["L4"].endswith(" †")
    assert "×2" in by_name["llama-3.1-70b"]["H100 SXM"]
    assert " to " in by_name["mixtral-8x7b"]["MI300X"]


def test_without_records_nothing_is_measured():
    assert measured_table([]) == "No record holds one yet."


@pytest.fixture
def swept(record):
    """Two sweeps whose crossovers are 8 and 4 sequences in every round."""
    own_s = {"16 KV heads, 32 tokens, float32": 1e-3, "narrow MLP, 64 tokens, float64": 2e-3}
    raw_s = {
        f"{name}, {batch} sequences": [max(8e-3, batch * own) for _ in range(10)]
        for name, own in own_s.items()
        for batch in (1, 16, 32)
    }
    timings = record["timings"] | {"raw_s": record["timings"]["raw_s"] | raw_s}
    parameters = {"dtypes": ["float32", "float64"]}
    specific = {"claim": "the_crossover_is_specific", "parameters": parameters}
    return record | specific | {"timings": timings}


def test_sweeps_of_a_record_are_read_off_their_raw_times(swept):
    lines = measured_table([swept]).splitlines()[2:]
    assert len(lines) == 2
    assert "16 KV heads, 32 tokens | float32 | in the chapter | 8.00 [8.00, 8.00]" in lines[0]
    assert "narrow MLP, 64 tokens | float64 | in the chapter | 4.00 [4.00, 4.00]" in lines[1]


def test_a_batching_record_gives_its_crossover_beside_its_prediction(record):
    metric = record["metrics"][0] | {"name": "crossover, sequences", "expected": 9.5}
    batching = record | {"claim": "batching_recovers_utilization", "metrics": [metric]}
    assert "9.50 | 1.20 [1.10, 1.30]" in measured_table([batching])
    assert measured_table([record]) == "No record holds one yet."
