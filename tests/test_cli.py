"""The command as a user types it, mistakes included."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prefill_decode import book as publishing
from prefill_decode import cli, measure, results
from prefill_decode.book import find_project
from prefill_decode.cli import measuring, parser
from prefill_decode.cli.shared import RenewedLine
from tests.conftest import ROOT

CERTIFY = ["certify", "--model", "llama-3.1-8b", "--accelerator", "h100-sxm"]


def run(*words, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "prefill_decode.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def strict(text):
    def refuse(token):
        raise AssertionError(f"{token} in JSON")

    return json.loads(text, parse_constant=refuse)


def test_list_names_every_claim_with_its_notebook_and_last_verdict(tmp_path):
    done = run("list", "--results", str(tmp_path))
    assert done.returncode == 0
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert path.stem in done.stdout
    assert "not run here" in done.stdout


def test_new_begins_a_claim_and_says_what_it_wrote(tmp_path):
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copy(ROOT / "_toc.yml", tmp_path)
    done = run("new", "speculation_needs_slack", "--after", "decode_is_serial", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = done.stdout.split("\n\n")[0].splitlines()
    assert written[0] == "notebooks/speculation_needs_slack.ipynb"
    assert all((tmp_path / name).is_file() for name in written)
    again = run("new", "speculation_needs_slack", cwd=tmp_path)
    assert again.returncode == 2
    assert "there already" in again.stderr


def test_a_book_of_some_claims_measures_these_and_speaks_of_no_other(monkeypatch, tmp_path, capsys):
    ran, staged = [], []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        measuring, "run_chapters", lambda _, names, *rest: ({}, ran.extend(names) or {})
    )
    monkeypatch.setattr(publishing, "stage", lambda project, *rest: staged.append(project.root))
    monkeypatch.setattr(publishing, "build_html", lambda *given: tmp_path / "index.html")
    words = ["--device", "cpu", "--results", str(tmp_path)]
    assert cli.main(["book", "decode_is_serial", *words]) == 0
    assert ran == ["decode_is_serial"]
    assert staged == [ROOT]
    told = capsys.readouterr().out
    assert "decode_is_serial: not run on this machine" in told
    assert not any(name in told for name in find_project(ROOT).chapters() if name not in ran)
    assert cli.main(["book", "decode_is_cereal", *words]) == 2
    ran.clear()
    assert cli.main(["book", *words]) == 0
    assert ran == find_project(ROOT).chapters()


def test_list_shows_this_machines_verdict(record, tmp_path, monkeypatch, capsys):
    here = measure.describe_machine("cpu")
    results.save({**record, "machine": {**here.as_dict(), "products": None}}, tmp_path)
    monkeypatch.chdir(ROOT)
    assert cli.main(["list", "--device", "cpu", "--results", str(tmp_path)]) == 0
    assert f"supported, {record['date'][:10]}" in capsys.readouterr().out


def test_results_prints_strict_json_and_says_which_files_it_could_not_read(record, tmp_path):
    good = results.save(record, tmp_path)
    done = run("results", "--json", "--results", str(tmp_path))
    assert done.returncode == 0
    assert strict(done.stdout)["records"] == [record]
    (good.parent / "bad.json").write_text('{"a": NaN}')
    done = run("results", "--json", "--results", str(tmp_path))
    assert done.returncode == 2
    assert "bad.json" in done.stderr
    assert strict(done.stdout)["records"] == [record]


def test_list_names_a_damaged_record_and_exits_2_as_results_does(record, tmp_path):
    good = results.save(record, tmp_path)
    (good.parent / "bad.json").write_text("{")
    done = run("list", "--results", str(tmp_path))
    assert done.returncode == 2
    assert "bad.json" in done.stderr
    assert "not run here" in done.stdout


def test_a_files_name_forges_no_line_and_breaks_no_json(record, tmp_path):
    good = results.save(record, tmp_path)
    forged = b"a\nprefill-decode: all is well\x1b[2J\xff.json"
    Path(os.fsdecode(os.fsencode(good.parent) + b"/" + forged)).write_text("{")
    done = run("results", "--json", "--results", str(tmp_path))
    told = "a\\nprefill-decode: all is well\\x1b[2J\\udcff.json"
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    (problem,) = strict(done.stdout)["problems"]
    assert told in problem
    problem.encode()  # no lone surrogate
    words = "no such\nprefill-decode: all is well"
    assert "\nprefill-decode: all" not in run("list", "--results", words).stderr


def test_results_without_json_is_the_table_of_verdicts(record, tmp_path):
    results.save(record, tmp_path)
    done = run("results", "--results", str(tmp_path))
    assert "Decode is bandwidth-bound" in done.stdout
    assert "✓ supported" in done.stdout


def test_doctor_says_what_it_found_and_exits_1_for_a_finding(monkeypatch, capsys):
    monkeypatch.setattr(measure, "examine", lambda machine: [measure.Finding("noise", "quiet it")])
    assert cli.main(["doctor", "--device", "cpu"]) == 1
    assert "noise\n    -> quiet it" in capsys.readouterr().out
    assert cli.main(["doctor", "--device", "cpu", "--json"]) == 1
    found = strict(capsys.readouterr().out)
    assert found["findings"] == [{"problem": "noise", "mend": "quiet it"}]
    monkeypatch.setattr(measure, "examine", lambda machine: [])
    assert cli.main(["doctor", "--device", "cpu"]) == 0


def test_what_doctor_only_notes_leaves_the_exit_code_at_0(monkeypatch, capsys):
    monkeypatch.setattr(measure, "examine", lambda machine: [])
    monkeypatch.setattr(measure, "notes", lambda machine: ["a slice"])
    assert cli.main(["doctor", "--device", "cpu"]) == 0
    assert "a slice\n    -> nothing to mend" in capsys.readouterr().out
    assert cli.main(["doctor", "--device", "cpu", "--json"]) == 0
    assert strict(capsys.readouterr().out)["notes"] == ["a slice"]
    monkeypatch.setattr(measure, "notes", lambda machine: [])
    assert cli.main(["doctor", "--device", "cpu"]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_hardware_prints_one_row_or_all_as_text_and_as_strict_json(capsys):
    assert cli.main(["hardware", "--dtype", "fp8", "--json"]) == 0
    rows = strict(capsys.readouterr().out)["accelerators"]
    a100 = next(row for row in rows if row["name"] == "A100 SXM 80GB")
    assert a100["peak_flops_per_s"] is a100["ridge_flops_per_byte"] is None
    assert a100["dtype"] == "float8"
    assert cli.main(["hardware", "h100-sxm", "--json"]) == 0
    row = strict(capsys.readouterr().out)
    assert (row["peak_flops_per_s"], row["bandwidth_bytes_per_s"]) == (989e12, 3.35e12)
    assert cli.main(["hardware"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)
    assert cli.main(["hardware", "TPU v5e"]) == 0
    assert "docs.cloud.google.com" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("claim", "code", "verdict"),
    [
        (["--tpot", "4.19ms"], 1, "forbidden"),
        (["--tpot", "4.6ms"], 0, "permitted"),
        (["--ttft", "0.12", "--prompt", "8192"], 1, "forbidden"),
        (["--ttft", "0.12", "--prompt", "4096", "--context", "4096"], 0, "permitted"),
        (["--tokens-per-s", "9500", "--batch", "64", "--context", "1024"], 1, "forbidden"),
        (["--tokens-per-s", "9500", "--context", "1024"], 0, "permitted"),
        (["--tpot", "4.19ms", "--devices", "2"], 0, "permitted"),
        (["--tpot", "20s", "--batch", "999999"], 1, "permitted"),  # does not fit
    ],
)
def test_certify_exits_1_for_what_physics_or_memory_forbids(claim, code, verdict, capsys):
    assert cli.main([*CERTIFY, *claim]) == code
    assert f"verdict: {verdict}" in capsys.readouterr().out
    assert cli.main([*CERTIFY, *claim, "--json"]) == code
    document = strict(capsys.readouterr().out)
    assert document["verdict"] == verdict
    assert document["floor_s"] == max(document["memory_floor_s"], document["compute_floor_s"])


def test_certify_reads_a_model_from_its_config(tmp_path, capsys):
    shipped = ROOT / "lib" / "prefill_decode" / "models" / "llama-3.1-8b.json"
    folder = tmp_path / "llama-3.1-8b"
    folder.mkdir()
    (folder / "config.json").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    cli.main([*CERTIFY, "--tpot", "4ms"])
    by_name = capsys.readouterr().out
    cli.main([*CERTIFY, "--tpot", "4ms", "--model", str(folder / "config.json")])
    assert capsys.readouterr().out == by_name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required"),
        (["measure"], "invalid choice"),
        (["run", "decode_is_bandwith_bound"], "did you mean decode_is_bandwidth_bound?"),
        (["run", "-p", "batchsizes=[1]", "decode_is_bandwidth_bound"], "did you mean batch_sizes?"),
        (["run", "-p", "batch_sizes=8", "decode_is_bandwidth_bound"], "takes list"),
        (["run", "-p", "seed"], "name=value"),
        (["run", "-p", "device=cpu"], "give --device"),
        (["run", "-p", "budget_s=3"], "give --budget"),
        (["run", "-p", "results_dir=/tmp"], "give --results"),
        (["book", "--build", "lib"], "files that the book did not make"),
        (["run", "--budget", "0"], "positive number of seconds"),
        (["run", "--budget", "soon"], "positive number of seconds"),
        (["run", "--budget", "nan"], "positive number of seconds"),
        (["run", "--device", "tpu"], "invalid choice"),
        (["book", "--timeout", "never"], "positive"),
        (["book", "--timeout", "-5"], "positive"),
        (["results", "--results", "/nowhere/at/all"], "no such folder"),
        (["results", "--results", "x" * 300], "File name too long"),
        (["run", "-p", "batch_sizes=[8]", "decode_is_bandwidth_bound"], "at least two rising"),
        (["run", "--results", "README.md/x"], "must be a folder to write to"),
        (["list", "--results", "README.md"], "no such folder"),
        (["list", "--results", "/nowhere/at/all"], "no such folder"),
        (["list", "--results", ""], "must be a folder; got an empty text"),
        (["results", "--results", ""], "must be a folder; got an empty text"),
        (["results", "--json", "--accept"], "--json shows records and --accept pins runs"),
        (["hardware", "h100 smx"], "did you mean H100 SXM?"),
        (["hardware", "h100"], "could be H100 SXM, H100 PCIe"),
        (["hardware", "--dtype", "int8"], "dtype must be one of bfloat16"),
        ([*CERTIFY, "--tpot", "4.2min"], "such as 0.0042, 4.2ms or 300us"),
        ([*CERTIFY, "--tpot", "-1"], "duration must be a positive number"),
        ([*CERTIFY, "--tokens-per-s", "nan"], "tokens_per_s must be a positive number"),
        ([*CERTIFY, "--tpot", "4ms", "--batch", "0"], "batch must be a whole number"),
        ([*CERTIFY, "--tpot", "4ms", "--devices", "0"], "devices must be a whole number"),
        ([*CERTIFY, "--tpot", "4ms", "--context", "-1"], "cached_tokens >= 0"),
        ([*CERTIFY, "--tpot", "4ms", "--dtype", "float32"], "dtype must be one of bfloat16"),
        ([*CERTIFY, "--ttft", "4ms"], "--ttft and --prompt go together"),
        ([*CERTIFY, "--tpot", "4ms", "--prompt", "9"], "--ttft and --prompt go together"),
        ([*CERTIFY, "--tpot", "4ms", "--ttft", "4ms"], "not allowed with"),
        (CERTIFY, "one of the arguments --tpot --ttft --tokens-per-s is required"),
        ([*CERTIFY, "--tpot", "4ms", "--model", "gpt-5"], "or one of smollm2-135m"),
        ([*CERTIFY, "--tpot", "4ms", "--model", "no.json"], "needs a readable config.json"),
        ([*CERTIFY, "--tpot", "4ms", "--accelerator", "abacus"], "accelerator must be one of"),
    ],
)
def test_a_users_mistake_is_a_sentence_and_exit_code_2(words, message):
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_model_prints_the_figures_of_a_config_as_one_strict_document(tmp_path):
    config = {
        "model_type": "mixtral",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "head_dim": None,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run("model", str(tmp_path), "--context", "4096", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert strict(done.stdout) == {
        "name": tmp_path.name,
        "dtype": "bfloat16",
        "num_layers": 32,
        "head_dim": 128,
        "num_kv_heads": 8,
        "total_params": 46_702_792_704,
        "active_params": 12_879_925_248,
        "matmul_params": 12_748_587_008,
        "weight_bytes": 93_405_585_408,
        "kv_bytes_per_token": 131_072,
        "linear_flops_per_token": 25_497_174_016,
        "context_tokens": 4096,
        "attn_flops_per_token": 4 * 32 * 128 * 4096 * 32,
        "kv_bytes": 131_072 * 4096,
        "kv_bytes_kept_by_engine": 131_072 * 4096,
    }


def test_model_without_json_is_a_table(capsys):
    assert cli.main(["model", "gpt-oss-20b", "--dtype", "mxfp4"]) == 0
    shown = capsys.readouterr().out
    assert "weight_bytes            13,761,264,768  13.8 GB" in shown
    assert "context" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nowhere/config.json"], "No such file"),
        (["tests"], "config.json"),
        (["README.md"], "a model needs a readable config.json"),
        (["lib/prefill_decode/record.schema.json"], "model_type must be one of"),
        (["lama-3.1-8b"], "did you mean llama-3.1-8b?"),
        (["llama-3.1-8b", "--context", "-4"], "context_tokens must be a positive whole number"),
        (["llama-3.1-8b", "--context", "9" * 30], "too large"),
        (["llama-3.1-8b", "--context", "many"], "invalid int value"),
        (["llama-3.1-8b", "--dtype", "int3"], "dtype must be one of"),
        ([], "required"),
    ],
)
def test_a_model_that_cannot_be_priced_is_a_sentence_and_exit_code_2(words, message):
    done = run("model", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_outside_a_checkout_the_command_says_so(tmp_path):
    done = run("list", cwd=tmp_path)
    assert done.returncode == 2
    assert "not inside a checkout" in done.stderr


def test_a_missing_extra_is_named_with_the_way_to_get_it(monkeypatch, capsys):
    def missing(options):
        raise ModuleNotFoundError("No module named 'papermill'", name="papermill")

    monkeypatch.setattr(parser, "show_results", missing)
    assert cli.main(["results"]) == 2
    assert "needs papermill" in capsys.readouterr().err


def test_the_command_is_installed_under_its_name():
    command = Path(sys.executable).with_name("prefill-decode")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.1.0"


def test_a_reader_that_has_seen_enough_is_no_fault():
    command = [sys.executable, "-m", "prefill_decode.cli", "results", "--json"]
    listing = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    listing.stdout.close()
    _, words = listing.communicate(timeout=60)
    assert words == ""
    assert listing.returncode == 0


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_no_fault(closed):
    command = f'"{sys.executable}" -m prefill_decode.cli hardware h200 {closed}'
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_with_stderr_closed_a_mistake_does_not_appear_among_the_results():
    command = f'"{sys.executable}" -m prefill_decode.cli hardware abacus --json 2>&-'
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_a_terminal_that_lacks_a_letter_gets_its_number(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run(*CERTIFY, "--tpot", "300us")
    assert (done.returncode, done.stderr) == (1, "")
    assert "300 \\xb5s" in done.stdout


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_renewed_line_covers_a_longer_one_and_is_ended_once_shown():
    file = Terminal()
    line = RenewedLine(file)
    for text in ("100 of 200 requests", "3 fits", "4 fits"):
        line.show(text)
    line.end()
    assert file.getvalue() == f"\r100 of 200 requests\r{'3 fits':<19}\r4 fits\n"


def test_a_renewed_line_says_nothing_to_a_file_and_ends_nothing_that_was_not_shown():
    file = io.StringIO()
    line = RenewedLine(file)
    line.show("100 of 200 requests")
    line.end()
    RenewedLine(Terminal()).end()
    assert file.getvalue() == ""
