"""What the tests of the engine share: both of a CPU's paths."""

import pytest

from prefill_decode.engine import linear


@pytest.fixture(params=["compiled kernels", "torch alone"])
def kernels_or_not(request, monkeypatch):
    """The law holds on both of a CPU's paths."""
    if request.param == "torch alone":
        monkeypatch.setattr(linear, "kernels", lambda: None)
    elif linear.kernels() is None:
        pytest.skip("no C++ compiler here")
