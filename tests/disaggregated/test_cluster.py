"""Workers on a Ray cluster, of two nodes in one machine: the tokens of one engine, whatever is
lost."""

import sys

import pytest

from prefill_decode.disaggregated.cluster import workers_on_cluster
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.restarts import RestartLimits
from tests.disaggregated.test_launch import PROMPTS, SAMPLINGS, Asking, fleet, model  # noqa: F401

NODE = {"num_cpus": 1, "object_store_memory": 10**8}
PATIENCE = Patience(silence_s=6.0)
LIMITS = RestartLimits(first_pause_s=0.1, longest_pause_s=0.1)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()


def test_two_nodes_give_the_tokens_of_one_engine(cluster, model):  # noqa: F811
    with workers_on_cluster(fleet(model), cluster.address, PATIENCE) as coordinator:
        asking = Asking(coordinator, model)
        for index, prompt in enumerate(PROMPTS):
            asking.submit(f"r{index}", prompt, 1 + 9 * index, SAMPLINGS[index % 2], 1 + index % 2)
        asking.assert_answered()
        hand_overs = coordinator.state().hand_overs
        assert (hand_overs.lost_workers, hand_overs.recomputed_answers) == (0, 0)
        assert hand_overs.moved_bytes > 0


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"num_decode": 2}, "each of 3 workers needs 1 processors of one node; the cluster has"),
        ({"threads": 2}, "each of 2 workers needs 2 processors of one node; the cluster has"),
        ({"transfer": "unix"}, "between nodes a cache moves by auto or tcp; got unix"),
    ],
)
def test_what_the_cluster_cannot_hold_is_refused(cluster, model, facts, words):  # noqa: F811
    with (
        pytest.raises(ValueError, match=words),
        workers_on_cluster(fleet(model, **facts), cluster.address),
    ):
        pass


def test_where_there_is_no_cluster_the_words_say_how_to_start_one(model, monkeypatch):  # noqa: F811
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(ValueError, match=r"no Ray cluster .* `ray start --head`"),
        workers_on_cluster(fleet(model), "127.0.0.1:9"),
    ):
        pass


def test_without_ray_the_words_name_the_extra(model, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ValueError, match=r"prefill-decode\[cluster\]"),
        workers_on_cluster(fleet(model)),
    ):
        pass


def test_a_node_that_is_lost_costs_nobody_a_token(cluster, model):  # noqa: F811
    complaints = []
    threads = fleet(model, threads=None)  # one each: there is room for no more
    with workers_on_cluster(
        threads, cluster.address, PATIENCE, complaints.append, LIMITS
    ) as coordinator:
        asking = Asking(coordinator, model)
        for index, prompt in enumerate(PROMPTS):
            asking.submit(f"r{index}", prompt, 120, SAMPLINGS[index % 2])
        asking.until(lambda: len(asking.heard) > 2)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        state = coordinator.state
        asking.until(lambda: state().hand_overs.lost_workers == 1)
        cluster.add_node(**NODE)
        asking.assert_answered()
        assert complaints
