"""Kernels: what a CPU needs beside torch, in C++, compiled for it when first needed.

torch's own products of a few rows do not keep the memory of a CPU busy, and each of its operations
costs microseconds between two reads of weights. `kernels.cpp` holds what closes both gaps: a
product that reads its weights once for any number of rows, with the norm or activation before it
and the residual after it; attention over the blocks of the cache with rotation and cache write;
and a plain read, the ceiling for both.

Needs:   g++ on Linux, or what CXX names in its place. Without one the engine runs on torch alone,
         more slowly, and `prefill-decode doctor` says so.
Kept in: the user's cache folder, one file for each source, compiler and CPU.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ["-std=c++17", "-O3", "-march=native", "-ffast-math", "-fPIC", "-fopenmp"]
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
PLAIN, NORM, SWIGLU = 0, 1, 2  # what happens to the rows before a product
TILE_VALUES = 32 * 1024  # of scratch for each thread: TILE_BYTES in kernels.cpp, as floats
LARGEST_HEAD = 512
OUTS_IN_TILE = 12  # as in kernels.cpp
MOST_LANES = 16  # values in a vector register

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_long
_PRODUCT = [_POINTER] * 7 + [ctypes.c_double, ctypes.c_int] + [_LONG] * 3 + [ctypes.c_int]
_PREPARE = [_POINTER] * 3 + [ctypes.c_double, ctypes.c_int] + [_LONG] * 2 + [ctypes.c_int]
_ATTENTION = [_POINTER] * 11 + [ctypes.c_double] + [_LONG] * 9 + [ctypes.c_int]


class Kernels:
    """The compiled functions, called with tensors."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        self.path = path
        self._product = {dtype: getattr(library, f"product_{n}") for dtype, n in DTYPES.items()}
        self._attention = {dtype: getattr(library, f"attention_{n}") for dtype, n in DTYPES.items()}
        self._prepare = {dtype: getattr(library, f"prepare_{n}") for dtype, n in DTYPES.items()}
        for function in self._prepare.values():
            function.argtypes, function.restype = _PREPARE, None
        for function in self._product.values():
            function.argtypes, function.restype = _PRODUCT, None
        for function in self._attention.values():
            function.argtypes, function.restype = _ATTENTION, None
        self._read = library.read_words
        self._read.argtypes, self._read.restype = [_POINTER, _LONG, ctypes.c_int], ctypes.c_uint64

    def read(self, values: Tensor) -> int:
        """Reads every byte of a contiguous tensor, a multiple of 8; the sum of its 8-byte words."""
        num_bytes = values.numel() * values.element_size()
        assert values.is_contiguous()
        assert num_bytes % 8 == 0
        return int(self._read(values.data_ptr(), num_bytes // 8, torch.get_num_threads()))

    def prepared(
        self, rows: Tensor, prologue: int, gains: Tensor | None = None, epsilon: float = 0.0
    ) -> Tensor:
        """[N, in] from [N, in] for NORM or [N, 2 in] for SWIGLU, ready for a product by torch."""
        size = rows.shape[1] // 2 if prologue == SWIGLU else rows.shape[1]
        assert rows.is_contiguous()
        _check_gains(gains, prologue, size, rows.dtype)
        ready = rows.new_empty(rows.shape[0], size)
        self._prepare[rows.dtype](
            rows.data_ptr(),
            _address(gains),
            ready.data_ptr(),
            epsilon,
            prologue,
            rows.shape[0],
            size,
            torch.get_num_threads(),
        )
        return ready

    def product(
        self,
        weight: Tensor,  # [out, in]
        rows: Tensor,  # [N, in], or [N, 2 in] for SWIGLU
        *,
        bias: Tensor | None = None,  # [out]
        residual: Tensor | None = None,  # [N, out]
        prologue: int = PLAIN,
        gains: Tensor | None = None,  # [in], for NORM
        epsilon: float = 0.0,
    ) -> Tensor:
        """[N, out]: residual + prologue(rows) weight^T + bias."""
        outs, size = weight.shape
        num_rows, threads = rows.shape[0], torch.get_num_threads()
        assert rows.shape[1] == (2 * size if prologue == SWIGLU else size)
        assert weight.dtype == rows.dtype
        assert bias is None or (bias.shape == (outs,) and bias.dtype == rows.dtype)
        _check_gains(gains, prologue, size, rows.dtype)
        assert weight.is_contiguous()
        assert rows.is_contiguous()
        assert residual is None or (residual.shape == (num_rows, outs) and residual.is_contiguous())
        results = rows.new_empty(num_rows, outs)
        scratch_size = num_rows * (size + MOST_LANES) + (num_rows + MOST_LANES) * size
        if rows.dtype == torch.bfloat16:
            scratch_size += threads * max(TILE_VALUES, OUTS_IN_TILE * size)
        scratch = torch.empty(scratch_size, dtype=_compute(rows.dtype))
        self._product[rows.dtype](
            weight.data_ptr(),
            _address(bias),
            rows.data_ptr(),
            _address(gains),
            _address(residual),
            results.data_ptr(),
            scratch.data_ptr(),
            epsilon,
            prologue,
            num_rows,
            size,
            outs,
            threads,
        )
        return results

    def decode_attention(
        self,
        qkv: Tensor,  # [B, (H + 2K) D]: not yet normed or turned
        keys: Tensor,  # [num_blocks, K, block_tokens, D]
        values: Tensor,
        turns: tuple[Tensor, Tensor] | None,  # cosines and signed sines, [capacity, 1, D]
        norms: tuple[Tensor, Tensor] | None,  # gains of the queries' and the keys' norm, [D]
        blocks: Tensor,  # [B, most_blocks]: where each sequence lies
        positions: Tensor,  # [B]
        longest_tokens: int,  # the most that a sequence holds, the new token included
        window: int | None,
        epsilon: float,
    ) -> Tensor:
        """[B, H D]: caches one new key and value for each sequence and attends to all it sees."""
        batch, threads = qkv.shape[0], torch.get_num_threads()
        _, num_kv_heads, block_tokens, head_dim = keys.shape
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        assert head_dim <= LARGEST_HEAD
        assert qkv.is_contiguous()
        assert keys.is_contiguous()
        assert values.shape == keys.shape
        assert values.is_contiguous()
        assert blocks.is_contiguous()
        assert positions.is_contiguous()
        assert blocks.dtype == positions.dtype == torch.int64
        assert len(blocks) == len(positions) == batch
        assert blocks.shape[1] * block_tokens >= longest_tokens
        attended = torch.empty(batch, num_heads * head_dim, dtype=qkv.dtype)
        groups = num_heads // num_kv_heads
        most_seen = min(longest_tokens, window or longest_tokens)
        scratch_size = threads * groups * (2 * head_dim + most_seen + MOST_LANES)
        scratch = torch.empty(scratch_size, dtype=_compute(qkv.dtype))
        cosines, sines = turns or (None, None)
        query_norm, key_norm = norms or (None, None)
        self._attention[qkv.dtype](
            qkv.data_ptr(),
            _address(query_norm),
            _address(key_norm),
            _address(cosines),
            _address(sines),
            keys.data_ptr(),
            values.data_ptr(),
            blocks.data_ptr(),
            positions.data_ptr(),
            attended.data_ptr(),
            scratch.data_ptr(),
            epsilon,
            batch,
            num_heads,
            num_kv_heads,
            head_dim,
            block_tokens,
            blocks.shape[1],
            most_seen,
            window or 0,
            int(turns is not None),
            threads,
        )
        return attended


@cache
def kernels() -> Kernels | None:
    """The kernels compiled for this machine; None where they cannot be, see `why_not`."""
    library = _library()
    return library if isinstance(library, Kernels) else None


def why_not() -> str | None:
    """Why there are no kernels here, in a sentence; None when there are."""
    library = _library()
    return None if isinstance(library, Kernels) else library


@cache
def _library() -> Kernels | str:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if sys.platform != "linux":
        return f"the kernels are compiled on Linux only; this is {sys.platform}"
    if compiler is None:
        return "there is no C++ compiler: install g++"
    try:
        path = _compiled(compiler)
        return Kernels(ctypes.CDLL(str(path)), path)
    except subprocess.CalledProcessError as error:
        return f"{compiler} could not compile them: {_first_complaint(error.stderr)}"
    except (OSError, AttributeError, subprocess.TimeoutExpired) as error:
        return f"they could not be loaded: {error}"


def _compiled(compiler: str) -> Path:
    """The shared library, from the cache folder or freshly compiled into it."""
    folder = cache_folder()
    words = shlex.split(compiler)  # CXX may be "ccache g++"
    version = subprocess.run(
        [*words, "--version"], capture_output=True, check=True, text=True, timeout=60
    ).stdout
    marked = version + compiler
    mark = sha256(SOURCE.read_bytes() + marked.encode() + cpu_mark() + " ".join(FLAGS).encode())
    path = folder / f"kernels-{mark.hexdigest()[:16]}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        compiled, linked = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        # Linked without -fopenmp: its functions come from the runtime that torch has loaded.
        compiling = [*words, *FLAGS, "-c", str(SOURCE), "-o", str(compiled)]
        linking = [*words, "-shared", str(compiled), "-o", str(linked)]
        for command in (compiling, linking):
            subprocess.run(command, capture_output=True, check=True, text=True, timeout=300)
        os.replace(linked, path)
    return path


def cache_folder() -> Path:
    """A folder of this user alone: in the home, or among temporary files where that is closed."""
    shared = Path(tempfile.gettempdir()) / f"prefill-decode-{os.getuid()}"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        candidates = [home / "prefill-decode", shared]
    except RuntimeError:  # a user without a home
        candidates = [shared]
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.lstat().st_uid == os.getuid() and os.access(folder, os.W_OK):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="prefill-decode-"))


def cpu_mark() -> bytes:
    """What the compiler sees of this CPU: its name and its flags."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = ("model name", "flags", "CPU part", "Features")
    found = {line for line in lines if line.partition("\t")[0].strip() in names}
    return "\n".join(sorted(found)).encode()


def _compute(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _check_gains(gains: Tensor | None, prologue: int, size: int, dtype: torch.dtype) -> None:
    assert (gains is not None) == (prologue == NORM)
    assert gains is None or (gains.shape == (size,) and gains.dtype == dtype)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _first_complaint(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines()
    return lines[0].strip() if lines else "no message"
