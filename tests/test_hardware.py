"""Accelerators against figures copied by hand from what their vendors print."""

import re

import pytest

from prefill_decode.hardware import PEAK_FIELDS, accelerator, accelerators, description, table

ROWS = accelerators()
# Dense TFLOP/s at bf16 and fp8, TB/s: NVIDIA's data sheets (their sparse figures halved), AMD's
# MI300X data sheet, Google's TPU pages.
PRINTED = {
    "A100 SXM 80GB": (624 / 2, None, 2.039),
    "A100 PCIe 80GB": (624 / 2, None, 1.935),
    "H100 SXM": (1979 / 2, 3958 / 2, 3.35),
    "H100 PCIe": (1513 / 2, 3026 / 2, 2.0),
    "H200 SXM": (1979 / 2, 3958 / 2, 4.8),
    "B200 SXM": (4500 / 2, 9000 / 2, 7.7),
    "L40S": (733 / 2, 1466 / 2, 0.864),
    "L4": (242 / 2, 485 / 2, 0.3),
    "MI300X": (2614.9 / 2, 5229.8 / 2, 5.3),
    "TPU v5e": (197, None, 0.819),
    "TPU v5p": (459, 459, 2.765),
}


@pytest.mark.parametrize("name", PRINTED)
def test_peaks_and_bandwidths_are_those_in_print_and_dense(name):
    bf16, fp8, bandwidth = PRINTED[name]
    row = accelerator(name)
    assert row.peak_bf16_flops_per_s == pytest.approx(bf16 * 1e12, rel=0.015)
    assert row.bandwidth_bytes_per_s == pytest.approx(bandwidth * 1e12)
    if fp8 is None:
        assert row.peak_fp8_flops_per_s is None
    else:
        assert row.peak_fp8_flops_per_s == pytest.approx(fp8 * 1e12, rel=0.015)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_halving_the_bits_at_most_doubles_the_dense_rate(row):
    """A sparse figure among dense ones would stand out as four times the next."""
    bf16, fp8 = row.peak_bf16_flops_per_s, row.peak_fp8_flops_per_s
    assert fp8 is None or 0.99 <= fp8 / bf16 <= 2.03
    assert row.peak_fp4_flops_per_s is None or 1.99 <= row.peak_fp4_flops_per_s / fp8 <= 4.01


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_source_and_only_positive_figures(row):
    assert re.search(r"\d|docs|data sheet", row.source), "a version, a commit or a date"
    assert "memory of" not in row.source
    figures = [value for key, value in vars(row).items() if re.search(r"_(s|bytes|w)$", key)]
    assert all(value is None or value > 0 for value in figures)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_capacity_is_the_printed_figure_in_the_printed_unit(row):
    figure, unit = row.capacity_printed.split()
    factor = {"GB": 1000**3, "GiB": 1024**3, "MiB": 1024**2}[unit]
    assert row.capacity_bytes == int(figure) * factor


@pytest.mark.parametrize(
    ("name", "ridge"),
    [("H100 SXM", 295), ("H200 SXM", 206), ("TPU v5e", 240), ("H20", 37), ("TPU v6e", 560)],
)
def test_ridges_are_the_published_ones(name, ridge):
    """H100, H200 and TPU v5e: How to Scale Your Model, "Roofline" and "GPUs"."""
    assert accelerator(name).at("bfloat16").ridge_flops_per_byte == pytest.approx(ridge, abs=1)


def test_names_are_unlike_and_found_whatever_their_case_and_spaces():
    plain = [re.sub(r"[^a-z0-9]", "", row.name.lower()) for row in ROWS]
    assert len(set(plain)) == len(ROWS)
    for row, short in zip(ROWS, plain, strict=True):
        assert accelerator(row.name) == accelerator(short) == accelerator(row.name.upper()) == row
    assert accelerator("h100-sxm").name == "H100 SXM"


def test_a_beginning_names_an_accelerator_when_only_one_has_it():
    assert accelerator("b200").name == "B200 SXM"
    assert accelerator("H20").name == "H20"  # in full, though H200 begins so too
    assert accelerator("l4").name == "L4"
    with pytest.raises(ValueError, match=r"'h100' could be H100 SXM, H100 PCIe; give"):
        accelerator("h100")


@pytest.mark.parametrize("name", ["H1000 SXM", "", "   ", "GTX"])
def test_an_unknown_accelerator_is_refused_with_the_names_there_are(name):
    with pytest.raises(ValueError, match="accelerator must be one of A100 SXM 80GB, "):
        accelerator(name)


def test_a_misspelt_accelerator_brings_the_nearest():
    with pytest.raises(ValueError, match=r"got 'h100 smx'; did you mean H100 SXM\?"):
        accelerator("h100 smx")


def test_half_precision_has_the_bfloat16_rate_and_fp8_its_own():
    h100 = accelerator("H100 SXM")
    assert h100.at("float16").peak_flops_per_s == h100.at("bf16").peak_flops_per_s == 989e12
    assert h100.at("fp8").peak_flops_per_s == h100.at("float8").peak_flops_per_s == 1978e12
    assert h100.at("fp8").dtype == "float8"
    assert h100.at("bf16").source == h100.source


def test_an_unknown_peak_is_refused_and_not_guessed():
    with pytest.raises(ValueError, match="A100 SXM 80GB: no source prints a dense peak at fp8"):
        accelerator("A100 SXM 80GB").at("fp8")
    with pytest.raises(ValueError, match="known are none"):
        accelerator("RTX PRO 6000 Server").at("bfloat16")
    with pytest.raises(ValueError, match=r"dtype must be one of .*; got 'float32'"):
        accelerator("H100 SXM").at("float32")


def test_the_table_and_the_description_show_unknown_as_unknown():
    shown = table(ROWS, "fp8").splitlines()
    assert len(shown) == 1 + len(ROWS)
    a100 = next(line for line in shown if line.startswith("A100 SXM"))
    assert "unknown" in a100
    assert a100.endswith("systems/a100_sxm.yaml")
    assert "unknown" in description(accelerator("TPU v5e"), "bfloat16")


@pytest.mark.parametrize("dtype", PEAK_FIELDS)
def test_a_row_as_a_dictionary_has_the_ridge_of_its_peak(dtype):
    for row in ROWS:
        values = row.as_dict(dtype)
        peak, ridge = values["peak_flops_per_s"], values["ridge_flops_per_byte"]
        assert (peak is None) == (ridge is None)
        assert peak is None or ridge == pytest.approx(peak / values["bandwidth_bytes_per_s"])
