"""What several tests share: the checkout, a tiny model, a record made by hand."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from prefill_decode.claim import Claim, Prediction
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Ceilings, Kernel, Machine, Timings
from prefill_decode.model_spec import ModelSpec
from prefill_decode.results import Record, make_record, make_simulated_record
from prefill_decode.results import record as record_module
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk

ROOT = Path(__file__).parents[1]
SITE = "tests/site/"
# Small enough for float64 on a CPU, with grouped queries and an odd vocabulary.
TINY = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=24,
    intermediate_size=40,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=61,
    tied_embeddings=False,
    dtype="float64",
)

# What libraries, and pytest itself, write into the environment of their process for good.
WRITTEN_BY_LIBRARIES = ("PYTEST_", "RAY_", "UCX_", "_TORCH", "TORCH", "MPL", "PYTHONBREAKPOINT")

settings.register_profile("unhurried", deadline=None)  # which would assert a time of every example
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--site", metavar="BUILD", help="a built book to look at: none is built")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process runs all tests of the pages, which share a browser; the others are shared file by
    file. Where most tests are is begun first."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            return SITE if path.startswith(SITE) else path

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """A test that leaves the environment changed decides what those after it see."""
    before = dict(os.environ)
    yield
    changed = sorted(
        name
        for name in before.keys() | os.environ.keys()
        if before.get(name) != os.environ.get(name) and not name.startswith(WRITTEN_BY_LIBRARIES)
    )
    for name in changed:  # so that the next test is not blamed for this one
        os.environ.pop(name, None)
        os.environ.update({name: before[name]} if name in before else {})
    assert not changed, f"a test leaves {', '.join(changed)} of the environment changed"


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tiny_model() -> ModelSpec:
    return TINY


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine(
        device="cpu",
        device_name="Test CPU @ 2.0",
        cpu_name="Test CPU @ 2.0",
        cores=2,
        threads=2,
        memory_bytes=16 * 10**9,
        last_level_cache_bytes=32 * 2**20,
        system="Linux x86_64",
        python="3.11.0",
        torch="2.13.0",
        numpy="2.4.0",
    )


@pytest.fixture(scope="session")
def timings() -> Timings:
    """Ten quiet rounds: one sequence 10 ms, eight 12 ms, a ceiling's kernel 5 ms."""
    return Timings(
        raw_s={
            "decode x1": tuple(0.010 + 0.0001 * i for i in range(10)),
            "decode x8": tuple(0.012 + 0.0001 * i for i in range(10)),
            "read": (0.005,) * 10,
            "matrix": (0.005,) * 10,
        },
        warmup_s={"decode x1": (0.1,), "decode x8": (0.1,), "read": (0.1,), "matrix": (0.1,)},
        disturbed=(False,) * 10,
        stopped_because="budget",
        duration_s=1.0,
    )


@pytest.fixture(scope="session")
def ceilings(timings: Timings) -> Ceilings:
    """Kernels that `timings` holds: 1e8 bytes and 5e8 FLOP in 5 ms each."""
    hardware = Hardware("Test CPU", "float64", 1e11, 2e10, "made up")
    matrix, read = Kernel("matrix", 5e8, lambda: None), Kernel("read", 1e8, lambda: None)
    return Ceilings(matrix, read, {"matrix": 1e11, "read": 2e10}, hardware, timings)


@pytest.fixture
def record(
    tiny_model: ModelSpec,
    machine: Machine,
    timings: Timings,
    ceilings: Ceilings,
    monkeypatch: pytest.MonkeyPatch,
) -> Record:
    told = "kernel to 2 rows, oneDNN"  # not measured here
    monkeypatch.setattr(record_module, "products_of", lambda device, dtype: told)
    claim = Claim(
        "decode waits for memory",
        [Prediction("batch 8 / batch 1", 1.1, rival=8.0)],
        controls=[Prediction("prefill", 8.0, rival=1.0)],
    )
    verdict = claim.judge(
        {"batch 8 / batch 1": Interval(1.2, 1.1, 1.3, 10, 0.97), "prefill": Interval(7, 6, 8, 10)}
    )
    return make_record(
        "decode_is_bandwidth_bound",
        claim,
        verdict,
        chunks={"decode x1": [Chunk(1, 16)], "decode x8": [Chunk(1, 16)] * 8},
        times=timings,
        ceilings=ceilings,
        machine=machine,
        model=tiny_model,
        parameters={"batch_sizes": [1, 8]},
        seed=0,
    )


@pytest.fixture
def simulated_record(tiny_model: ModelSpec, machine: Machine) -> Record:
    """Of figures that stand for hardware which is not here."""
    claim = Claim(
        "pools follow the work",
        [Prediction("prefill / decode workers", 3.0, rival=1.0)],
        controls=[Prediction("equal work", 1.0, rival=3.0)],
    )
    three, one = Interval(3, 3, 3, 8, 0.99), Interval(1, 1, 1, 8, 0.99)
    verdict = claim.judge({"prefill / decode workers": three, "equal work": one})
    return make_simulated_record(
        "pools_scale_apart",
        claim,
        verdict,
        hardware=[Hardware("Elsewhere", "bfloat16", 1e15, 1e12, "a data sheet")],
        num_seeds=8,
        duration_s=2.0,
        machine=machine,
        model=tiny_model,
        parameters={"workers": 4, "budget_s": 10.0},
        seed=0,
    )
