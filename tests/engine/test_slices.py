import pytest

from prefill_decode import hf_config
from prefill_decode.engine import choose_slice

MIB, GB = 2**20, 10**9


def test_a_slice_has_the_layers_of_the_model_and_fewer_of_them():
    whole = hf_config.get("laptop-254m").with_dtype("float32")
    cut = choose_slice("auto", 2, "cpu", 32 * MIB, 16 * GB)
    assert cut.layer_params == whole.layer_params
    assert cut.block_params * 8 == whole.block_params  # 2 of 16 layers
    assert cut.kv_bytes_per_token * 8 == whole.kv_bytes_per_token
    assert cut.lm_head_params == 1024 * 1024
    assert "2 of 16 layers" in cut.name


@pytest.mark.parametrize("num_layers", [0, 17])
def test_a_slice_is_no_thicker_than_the_model(num_layers):
    with pytest.raises(ValueError, match="from 1 to 16 layers"):
        choose_slice("laptop-254m", num_layers, "cpu", 32 * MIB, 16 * GB)
