"""The compiled kernels against torch, for sizes that divide by nothing."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from prefill_decode import kernels as compiled
from prefill_decode.kernels import NORM, PLAIN, SWIGLU, Kernels, kernels

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def ready() -> Kernels:
    found = kernels()
    if found is None:
        pytest.skip(f"no kernels here: {compiled.why_not()}")
    return found


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("g++"),
    reason="no C++ compiler here",
)
def test_where_there_is_a_compiler_the_kernels_compile_and_load():
    """Else every test of them would be skipped, and a broken source would go unseen."""
    assert compiled.why_not() is None


def noise(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 6, 7, 13, 16, 23, 28])
@pytest.mark.parametrize(
    ("outs", "size"), [(1, 1), (3, 7), (64, 64), (129, 130), (37, 1000), (420, 48)]
)
def test_a_product_is_torchs_for_any_sizes(ready, dtype, num_rows, outs, size):
    weight, rows = noise(outs, size, dtype=dtype), noise(num_rows, size, dtype=dtype, seed=1)
    bias, residual = noise(outs, dtype=dtype, seed=2), noise(num_rows, outs, dtype=dtype, seed=3)
    found = ready.product(weight, rows, bias=bias, residual=residual, prologue=PLAIN)
    wanted = rows.double() @ weight.double().T + bias.double() + residual.double()
    scale = wanted.abs().max()
    assert (found.double() - wanted).abs().max() <= TOLERANCE[dtype] * scale


def test_what_sizes_the_scratch_is_the_same_in_both_sources():
    """The kernels write where Python has made room: a constant that moves must move in both."""
    source = compiled.SOURCE.read_text()
    tile_bytes = int(re.search(r"TILE_BYTES = (\d+) \* 1024", source)[1]) * 1024
    assert tile_bytes // 4 == compiled.TILE_VALUES
    assert int(re.search(r"OUTS_IN_TILE = (\d+)", source)[1]) == compiled.OUTS_IN_TILE
    assert int(re.search(r"LARGEST_HEAD = (\d+)", source)[1]) == compiled.LARGEST_HEAD
    vector_bytes = [int(found) for found in re.findall(r"VECTOR_BYTES = (\d+)", source)]
    assert max(vector_bytes) // 4 == compiled.MOST_LANES


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("num_rows", [1, 4, 5, 6, 7, 12, 16, 23, 28, 29])
def test_a_product_writes_nothing_beyond_its_scratch(ready, monkeypatch, dtype, num_rows):
    """Behind the scratch lie values that must still be there."""
    beyond, plain = [], torch.empty

    def with_room_behind(*size, **options):
        if len(size) != 1:
            return plain(*size, **options)
        made = plain(size[0] + 4096, **options)
        beyond.append(made[size[0] :].fill_(7.0))
        return made[: size[0]]

    weights = [noise(outs, size, dtype=dtype) for outs, size in ((25, 7), (50, 100), (13, 4100))]
    rows = [noise(num_rows, weight.shape[1], dtype=dtype) for weight in weights]
    monkeypatch.setattr(torch, "empty", with_room_behind)
    for weight, given in zip(weights, rows, strict=True):
        ready.product(weight, given)
    assert len(beyond) == len(weights)
    assert all((tail == 7.0).all() for tail in beyond)


@pytest.mark.parametrize("num_rows", [5, 13, 16, 23])
def test_a_row_that_is_no_number_leaves_the_others_as_they_are(ready, num_rows):
    weight = noise(50, 70, dtype=torch.float64)
    rows = noise(num_rows, 70, dtype=torch.float64, seed=1)
    wanted = rows @ weight.T
    rows[num_rows // 2] = torch.nan
    found = ready.product(weight, rows)
    assert found[num_rows // 2].isnan().all()
    kept = [row for row in range(num_rows) if row != num_rows // 2]
    torch.testing.assert_close(found[kept], wanted[kept], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("num_rows", [1, 9, 16])
def test_the_norm_and_the_activation_before_a_product_are_torchs(ready, dtype, num_rows):
    weight, gains = noise(40, 24, dtype=dtype), noise(24, dtype=dtype, seed=1)
    rows = 30 * noise(num_rows, 24, dtype=dtype, seed=2)
    found = ready.product(weight, rows, prologue=NORM, gains=gains, epsilon=1e-3)
    normed = functional.rms_norm(rows.double(), (24,), gains.double(), 1e-3)
    wanted = normed @ weight.double().T
    assert (found.double() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()

    both = 30 * noise(num_rows, 48, dtype=dtype, seed=3)  # far into both tails of the sigmoid
    found = ready.product(weight, both, prologue=SWIGLU)
    gate, up = both.double().chunk(2, dim=-1)
    wanted = (functional.silu(gate) * up) @ weight.double().T
    assert (found.double() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_many_rows_are_prepared_for_torch_as_few_are_for_the_kernel(ready, dtype):
    rows, gains = 30 * noise(70, 46, dtype=dtype), noise(46, dtype=dtype, seed=1)
    normed = functional.rms_norm(rows.double(), (46,), gains.double(), 1e-3)
    found = ready.prepared(rows, NORM, gains, 1e-3)
    assert found.dtype == dtype
    assert (found.double() - normed).abs().max() <= TOLERANCE[dtype] * normed.abs().max()
    gate, up = rows.double().chunk(2, dim=-1)
    wanted = functional.silu(gate) * up
    found = ready.prepared(rows, SWIGLU)
    assert (found.double() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


def test_scores_far_apart_neither_overflow_nor_become_nan(ready):
    """One key that outweighs the others by e^2000, in the place where a sum would overflow."""
    keys = torch.zeros(1, 1, 8, 4, dtype=torch.float32)
    values = noise(1, 1, 8, 4, dtype=torch.float32)
    keys[0, 0, 2] = 1000.0
    qkv = torch.cat([torch.full((1, 4), 1.0), torch.zeros(1, 4), torch.ones(1, 4)], dim=1)
    blocks, positions = torch.tensor([[0]]), torch.tensor([5])
    found = ready.decode_attention(qkv, keys, values, None, None, blocks, positions, 6, None, 1e-6)
    torch.testing.assert_close(found[0], values[0, 0, 2])


def cached_in_blocks(block_tokens, totals, head_dim, dtype, seed=0):
    """Noise in a cache, and a scattered table for sequences of these lengths: [B, most_blocks]."""
    num_blocks = [-(-total // block_tokens) for total in totals]
    keys = noise(sum(num_blocks) + 1, 2, block_tokens, head_dim, dtype=dtype, seed=seed)
    values = noise(sum(num_blocks) + 1, 2, block_tokens, head_dim, dtype=dtype, seed=seed + 1)
    scattered = torch.randperm(len(keys), generator=torch.Generator().manual_seed(seed))
    table = torch.full((len(totals), max(num_blocks)), 10**9)  # never read beyond a sequence
    for row, blocks in zip(table, scattered[:-1].split(num_blocks), strict=True):
        row[: len(blocks)] = blocks
    return keys, values, table


def attended_by_hand(qkv, keys, values, blocks, position, window):
    """One sequence in float64, [H D], 4 query heads on 2 KV heads; its token is in the cache."""
    size, block_tokens = keys.shape[3], keys.shape[2]
    places = range(max(0, position + 1 - (window or position + 1)), position + 1)
    seen = [(int(blocks[place // block_tokens]), place % block_tokens) for place in places]
    mixed = []
    for head in range(4):
        query = qkv[head * size : (head + 1) * size].double()
        head_keys = torch.stack([keys[b, head // 2, o] for b, o in seen]).double()
        head_values = torch.stack([values[b, head // 2, o] for b, o in seen]).double()
        mixed.append((head_keys @ query / size**0.5).softmax(0) @ head_values)
    return torch.cat(mixed)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("block_tokens", [1, 3, 16, 64, 100, 200])
@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize("head_dim", [20, 64])
def test_attention_walks_block_tables_over_any_of_their_ends(
    ready, dtype, block_tokens, window, head_dim
):
    totals = [1, 64, 65, 150]
    keys, values, table = cached_in_blocks(block_tokens, totals, head_dim, dtype)
    before = [keys.clone(), values.clone()]
    qkv = noise(len(totals), 8 * head_dim, dtype=dtype, seed=5)
    positions = torch.tensor(totals) - 1
    found = ready.decode_attention(
        qkv, keys, values, None, None, table, positions, max(totals), window, 1e-6
    )
    new_keys, new_values = qkv[:, 4 * head_dim :].view(-1, 2, 2, head_dim).unbind(1)
    for row, position in enumerate(positions.tolist()):
        place = (int(table[row, position // block_tokens]), slice(None), position % block_tokens)
        assert torch.equal(keys[place], new_keys[row])
        assert torch.equal(values[place], new_values[row])
        before[0][place], before[1][place] = new_keys[row], new_values[row]
        wanted = attended_by_hand(qkv[row], keys, values, table[row], position, window)
        assert (found[row].double() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    assert torch.equal(keys, before[0])  # and nothing else was written
    assert torch.equal(values, before[1])


def test_attention_refuses_tables_it_would_misread(ready):
    keys, values, table = cached_in_blocks(4, [8, 8], 8, torch.float32)
    qkv, positions = noise(2, 64, dtype=torch.float32), torch.tensor([7, 7])
    rest = (keys, values, None, None)
    for blocks, longest in ((table.int(), 8), (table.T, 8), (table, 9), (table[:1], 8)):
        with pytest.raises(AssertionError):
            ready.decode_attention(qkv, *rest, blocks, positions, longest, None, 1e-6)


def test_a_product_refuses_tensors_it_would_misread(ready):
    weight, rows = noise(6, 8, dtype=torch.float32), noise(2, 8, dtype=torch.float32)
    with pytest.raises(AssertionError):
        ready.product(weight.T, rows)
    with pytest.raises(AssertionError):
        ready.product(weight, rows.double())
    with pytest.raises(AssertionError):
        ready.product(weight, rows, residual=noise(1, 6, dtype=torch.float32))


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_home_that_cannot_be_written_sends_the_file_to_one_temporary_folder(ready, tmp_path):
    (tmp_path / "file").write_text("no folder")
    code = "from prefill_decode.kernels import why_not; print(why_not())"
    for _ in range(2):
        done = run_python(code, XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
        assert done.stdout.strip() == "None", done.stdout + done.stderr
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert folder.name == f"prefill-decode-{os.getuid()}"
    assert len(list(folder.glob("*.so"))) == 1


def test_without_a_compiler_the_engine_says_so_and_runs_on_torch(tmp_path):
    code = (
        "from prefill_decode import kernels\n"
        "from prefill_decode.engine import Engine, SequenceChunk\n"
        "from prefill_decode.model_spec import ModelSpec\n"
        "engine = Engine(ModelSpec('m', 1, 16, 32, 2, 1, 8, 30, False, dtype='float32'))\n"
        "print(engine.forward([SequenceChunk(0, [1, 2])]).shape, kernels.why_not())"
    )
    done = run_python(code, CXX=str(tmp_path / "no-such-compiler"), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1, 30])" in done.stdout
    assert "no-such-compiler" in done.stdout


def test_a_second_process_finds_the_compiled_file_and_nothing_half_written(ready, tmp_path):
    code = "from prefill_decode.kernels import why_not; print(why_not())"
    for _ in range(2):
        done = run_python(code, XDG_CACHE_HOME=str(tmp_path))
        assert done.stdout.strip() == "None", done.stdout + done.stderr
    assert [path.suffix for path in (tmp_path / "prefill-decode").iterdir()] == [".so"]


def test_a_product_of_no_rows_is_empty(ready):
    weight = noise(64, 32, dtype=torch.float32)
    assert ready.product(weight, torch.empty(0, 32)).shape == (0, 64)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled on Linux only")
def test_a_compiler_that_fails_at_once_is_a_reason_and_no_crash(monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho error: no licence >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", f"{broken} --quiet")
    reason = compiled._library.__wrapped__()
    assert "no licence" in str(reason)
