import os
import subprocess
import sys
import time
from math import isnan

import pytest

from prefill_decode.measure import process_time_of_s, processor_time, processor_time_s


def test_processor_time_counts_this_process_the_servers_and_their_children():
    burn = "import time\nwhile time.process_time() < 0.4: pass\n"
    code = f"import subprocess, sys\n{burn}subprocess.run([sys.executable, '-c', '''{burn}"
    code += "import sys\nprint(1, flush=True)\nsys.stdin.read()'''])"
    words = [sys.executable, "-c", code]
    before_s = processor_time_s([]) - time.process_time()
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        family_s = processor_time_s([parent.pid]) - time.process_time()
        parent.stdin.close()
    assert abs(before_s) < 0.05
    assert family_s > 0.7  # a child alone, or a parent alone, would have about 0.4
    assert processor_time_s([parent.pid]) > 0  # it has ended


@pytest.mark.parametrize("platform", [sys.platform, "another"])
def test_the_time_of_one_process_grows_with_what_it_computes_and_leaves_its_children_out(
    platform, monkeypatch
):
    monkeypatch.setattr(processor_time.sys, "platform", platform)
    before_s = process_time_of_s(os.getpid())
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:
        pass
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert 0.25 < process_time_of_s(os.getpid()) - before_s < 0.45


@pytest.mark.parametrize("platform", [sys.platform, "another"])
def test_of_a_process_that_has_ended_no_time_is_known(platform, monkeypatch):
    monkeypatch.setattr(processor_time.sys, "platform", platform)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert isnan(process_time_of_s(ended.pid))
