"""Actors: answers in order, checkpoints, and what happens when some are lost."""

import os
import warnings

import numpy as np
import pytest

from skdml._actors import ActorLost, Actors, DaskActors, ProcessActors, start_actors
from skdml.utils._parallel import nbytes
from tests.systems import KILL


class Counting:
    """Its answers tell which questions it has seen."""

    def __init__(self, number, checkpoint=()):
        self.number, self.seen = number, list(checkpoint)

    def start(self, update):
        self.seen.append(update)
        return np.array([self.number, *self.seen])

    def finish(self, update):
        return np.array([self.number, *self.seen, -update])

    def checkpoint(self):
        return tuple(self.seen)

    def fail(self):
        raise ZeroDivisionError(f"actor {self.number}")

    def process(self):
        return os.getpid()

    def die(self):
        os.kill(os.getpid(), KILL)


class Fragile(Actors):
    """Loses a group at given questions."""

    def __init__(self, *args, lose=(), **kwargs):
        super().__init__(*args, **kwargs)
        self.lose, self.n_asked = set(lose), 0

    def _receive(self, group, ticket):
        self.n_asked += 1
        if self.n_asked in self.lose:
            raise ActorLost("on purpose")
        return super()._receive(group, ticket)


def counting(n_actors=3, n_groups=2, **options):
    arguments = [(number,) for number in range(n_actors)]
    return Fragile(Counting, arguments, n_groups=n_groups, name="counters", **options)


@pytest.mark.parametrize("lost", [6, 8])  # at the start of the second update, or at its end
def test_a_lost_group_is_asked_again_all_of_the_update(lost):
    with counting() as whole, counting(lose=[lost]) as actors:
        for one in (whole, actors):
            one.ask("start", 1)
            one.save()
        expected = [whole.ask("start", 2), whole.ask("finish", 2, continues=True)]
        with pytest.warns(RuntimeWarning, match="counters 1 were lost, on purpose"):
            found = [actors.ask("start", 2), actors.ask("finish", 2, continues=True)]
        for answers, others in zip(found, expected, strict=True):
            np.testing.assert_array_equal(answers, others)
        assert actors.n_restarts == 1
        assert actors.checkpoints == [(1,), (1,), (1,)]


def test_losing_actors_for_ever_is_an_error():
    with counting(1, lose=range(100)) as actors, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=r"counters 0 were lost.*20 times"):
            actors.ask("start", 1)


def test_a_loss_is_reported_where_actors_are_not_to_be_restarted():
    with counting(lose=[1], restart=False) as actors:
        first, second, third = actors.ask("start", 1)
        assert isinstance(first, ActorLost)
        assert isinstance(third, ActorLost)  # of the same group
        np.testing.assert_array_equal(second, [1, 1])
        assert isinstance(actors.ask_one(0, "start", 2), ActorLost)
        np.testing.assert_array_equal(actors.ask_one(1, "start", 2), [1, 1, 2])
        assert actors.n_restarts == 0


def test_one_actor_can_be_asked():
    with counting(5) as actors:
        assert [actors.ask_one(i, "start", 7).tolist() for i in (3, 4)] == [[3, 7], [4, 7]]
        assert [answer.tolist()[:1] for answer in actors.ask("start", 8)] == [[i] for i in range(5)]


def test_bytes_are_those_of_the_numbers():
    assert nbytes((np.zeros(3, np.float32), b"ab", None, 1.0)) == 12 + 2 + 8
    with counting() as actors:
        actors.ask("start", 1)
        assert actors.traffic == {"start": 8 + 16}


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")
def test_processes_answer_fail_and_come_back():
    arguments = [(number,) for number in range(3)]
    with start_actors(Counting, arguments, n_jobs=2, name="counters") as actors:
        assert isinstance(actors, ProcessActors)
        assert [answer.tolist() for answer in actors.ask("start", 5)] == [[0, 5], [1, 5], [2, 5]]
        with pytest.raises(ZeroDivisionError, match="actor 0"):
            actors.ask("fail")
        actors.save()
        processes = actors.ask("process")
        assert processes[0] == processes[2] != processes[1]
        os.kill(processes[1], KILL)
        with pytest.warns(RuntimeWarning, match="counters 1 were lost, with their process"):
            assert actors.ask_one(1, "start", 6).tolist() == [1, 5, 6]
    with start_actors(Counting, arguments, n_jobs=2, restart=False) as actors:
        assert isinstance(actors.ask_one(1, "die"), ActorLost)
        assert [isinstance(one, ActorLost) for one in actors.ask("start", 1)] == [
            False,
            True,
            False,
        ]


def test_dask_actors_stay_at_their_workers(cluster_client):
    processes = cluster_client.run(os.getpid)
    workers = sorted(processes)[::-1]
    options = {"client": cluster_client, "restart": False}
    with start_actors(Counting, [(0,), (1,)], workers=workers, **options) as actors:
        assert isinstance(actors, DaskActors)
        assert actors.ask("process") == [processes[worker] for worker in workers]
        os.kill(processes[workers[0]], KILL)
        lost, alive = actors.ask("start", 3)
        assert isinstance(lost, ActorLost)
        assert alive.tolist() == [1, 3]
    gone = [workers[1], "tcp://127.0.0.1:1"]
    with start_actors(Counting, [(0,), (1,)], workers=gone, **options) as actors:
        assert isinstance(actors.ask("start", 3)[1], ActorLost)
    cluster_client.wait_for_workers(2, timeout=60)
