"""When a worker that died starts again."""

from prefill_decode.disaggregated.restarts import RestartLimits, Restarts


def test_pauses_double_up_to_the_longest_and_end_after_so_many_in_a_row():
    restarts = Restarts(RestartLimits(0.5, 3.0, calm_s=10.0, most_in_a_row=4), started_s=0.0)
    pauses, now_s = [], 0.0
    for _ in range(4):
        now_s += 1.0
        restarts.died(now_s)
        pauses.append(restarts.due_s - now_s)
        now_s = restarts.due_s
        restarts.started(now_s)
        assert restarts.due_s is None
    assert pauses == [0.5, 1.0, 2.0, 3.0]
    assert not restarts.given_up
    restarts.died(now_s + 1.0)
    assert restarts.given_up
    assert restarts.due_s is None


def test_who_lived_for_a_while_begins_anew():
    restarts = Restarts(RestartLimits(0.5, 30.0, calm_s=10.0, most_in_a_row=2), started_s=0.0)
    for now_s in (1.0, 2.0, 13.0):
        restarts.died(now_s)
        restarts.started(now_s)
    assert restarts.in_a_row == 1
    restarts.died(13.5)
    assert restarts.due_s == 14.5
