import os
import signal
import threading

import psutil
import pytest

from prefill_decode.disaggregated.lender import Lender, questions


def doubles(connection, folder, factor):
    for (number,) in questions(connection):
        connection.send((number * factor, os.path.isdir(folder)))


def dies(connection, folder):
    connection.recv()
    os._exit(7)


@pytest.fixture
def lender():
    lender = Lender(doubles, 2)
    yield lender
    lender.close()


def test_a_question_has_an_answer_from_another_process(lender):
    assert lender.ask(21) == (42, True)
    assert lender.process.pid != os.getpid()


def test_closing_ends_the_process_takes_its_folder_and_may_come_twice(lender):
    folder = lender._folder.name
    pid = lender.process.pid
    lender.close()
    lender.close()
    assert not psutil.pid_exists(pid)
    assert not os.path.exists(folder)


def test_a_process_that_dies_is_an_error_with_its_code():
    lender = Lender(dies)
    try:
        with pytest.raises(ConnectionError, match="ended with code 7"):
            lender.ask("anything")
        with pytest.raises(ConnectionError, match="ended with code 7"):
            lender.ask("once more")
    finally:
        lender.close()


def test_it_leaves_no_thread_and_no_descriptor_behind():
    def left():
        return threading.active_count(), psutil.Process().num_fds()

    Lender(doubles, 1).close()  # what multiprocessing keeps for good
    before = left()
    for _ in range(3):
        lender = Lender(doubles, 1)
        lender.ask(1)
        lender.close()
    assert left() == before


def test_an_interrupt_does_not_reach_it(lender, capfd):
    lender.ask(1)
    os.kill(lender.pid, signal.SIGINT)
    assert lender.ask(3) == (6, True)
    assert capfd.readouterr().err == ""


def test_its_processor_time_counts_both_processes(lender):
    before_s = lender.own_s()
    sum(range(10**6))
    assert lender.own_s() > before_s
