import subprocess
import sys
import time

from prefill_decode.measure import processor_time_s


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
