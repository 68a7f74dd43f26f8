"""Actors: objects that keep state and answer calls, in this process, in others, or on dask workers.

`start_actors` says where they live; all kinds are used in the same way::

    class Counter:
        def __init__(self, start, checkpoint=None):
            self.value = start if checkpoint is None else checkpoint

        def add(self, number):
            self.value += number
            return self.value

        def checkpoint(self):
            return self.value

    with start_actors(Counter, [(0,), (10,)], n_jobs=2, name="counters") as counters:
        counters.ask("add", 1)  # [1, 11]
        counters.save()  # checkpoints, for restarts
        counters.ask_one(0, "add", 1)  # 2

Arguments and answers are sent; the state of an actor stays where it is. An actor whose process or
worker dies is started again from its last checkpoint, with a warning, or reported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

import joblib

from .utils._cluster import WorkerLost, find_workers, lost_workers, wait_for
from .utils._folders import remove_leftovers
from .utils._parallel import limit_threads, nbytes
from .utils._processes import end_with_parent

# How often actors may be lost before it is an error.
_MAX_RESTARTS = 20
# Seconds after which the process of an actor that does not answer is looked for.
_LOOK_EVERY = 0.2


class ActorLost(Exception):
    """The process or the worker of some actors is gone."""


class ActorGroup:
    """Actors that share a process.

    Parameters
    ----------
    actor : callable
        Makes an actor of its arguments, and of ``checkpoint=`` where it has one.
    parts : sequence of (tuple, object)
        Arguments and checkpoint of each.
    """

    def __init__(self, actor: Callable[..., Any], parts: Sequence[tuple[Any, Any]]) -> None:
        self.actors = [
            actor(*args) if checkpoint is None else actor(*args, checkpoint=checkpoint)
            for args, checkpoint in parts
        ]

    def ask(self, place: int | None, method: str, args: Any, n_threads: int | None = 1) -> Any:
        """Return the answers of all actors, or of the one at a place; or the error of one."""
        chosen = self.actors if place is None else self.actors[place : place + 1]
        try:
            with limit_threads(n_threads):  # other work of the process need not keep to it
                return [getattr(actor, method)(*args) for actor in chosen]
        except Exception as error:
            return error


class Actors:
    """Actors in this process, in groups; a context manager.

    Subclasses say where a group lives: `_begin`, `_send`, `_receive` and `_end`.

    Parameters
    ----------
    actor : callable
        As in `ActorGroup`.
    arguments : sequence of tuple
        The arguments of each actor.
    n_groups : int, default=1
        Over how many processes or workers they are spread, in turn.
    name : str, default="actors"
        Their name in warnings.
    restart : bool, default=True
        Whether lost actors are started again. If not, an `ActorLost` takes the place of their
        answers.

    Attributes
    ----------
    checkpoints : list
        The last checkpoint of each actor; None before the first.
    n_restarts : int
        How often a group was lost.
    traffic : Counter
        Bytes of numbers to and from one actor, by method.
    """

    def __init__(
        self,
        actor: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        *,
        n_groups: int = 1,
        name: str = "actors",
        restart: bool = True,
    ) -> None:
        self._actor, self._arguments, self._name = actor, arguments, name
        self._may_restart = restart
        n_groups = min(n_groups, len(arguments))
        self._numbers = [range(first, len(arguments), n_groups) for first in range(n_groups)]
        self._groups: list[Any] = [None] * n_groups
        self._lost: dict[int, ActorLost] = {}
        self._asked: list[tuple[Any, ...]] = []
        self.checkpoints: list[Any] = [None] * len(arguments)
        self.n_restarts = 0
        self.traffic: Counter[str] = Counter()

    def __enter__(self) -> Self:
        try:
            for group in range(len(self._groups)):
                self._settle(group, self._try(self._begin, group))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for group in range(len(self._groups)):
            self._end(group)

    def ask(self, method: str, *args: Any, continues: bool = False) -> list[Any]:
        """Call a method of every actor at the same time.

        Parameters
        ----------
        method : str
            Its name.
        *args
            Its arguments.
        continues : bool, default=False
            Whether the call depends on those before it, up to the last that does not: actors that
            are started again are asked these once more.

        Returns
        -------
        answers : list
            One for each actor. The error of an actor is raised.
        """
        if not continues:
            self._asked = []
        found = self._ask(range(len(self._groups)), (None, method, args))
        places = (divmod(number, len(self._groups)) for number in range(len(self._arguments)))
        answers = [_answer(found[group], place) for place, group in places]
        self.traffic[method] += nbytes(args) + nbytes(answers[0])
        return answers

    def ask_one(self, number: int, method: str, *args: Any) -> Any:
        """Call a method of one actor, and return its answer; see `ask`."""
        place, group = divmod(number, len(self._groups))
        self._asked = []
        return _answer(self._ask([group], (place, method, args))[0], 0)

    def _ask(self, groups, question):
        """Ask groups at the same time, and return what came back when all have answered."""
        self._asked.append(question)
        sent = [(group, self._try(self._send, group, question)) for group in groups]
        return [self._settle(group, self._try(self._receive, group, one)) for group, one in sent]

    def save(self) -> None:
        """Fetch the checkpoint of every actor, by its method of that name."""
        self.checkpoints = self.ask("checkpoint")

    def _settle(self, group, found):
        """Restart a group until it has answered, if it may; return the answers, or an error."""
        while isinstance(found, ActorLost) and self._may_restart:
            found = self._restart(group, found)
        if isinstance(found, ActorLost):
            self._lost[group] = found
        return found

    def _restart(self, group, lost):
        """Start a group again from its checkpoints, and ask it the last questions once more."""
        self.n_restarts += 1
        lost = f"{self._name} {', '.join(map(str, self._numbers[group]))} were lost, {lost}"
        if self.n_restarts > _MAX_RESTARTS:
            raise RuntimeError(f"{lost}; {_MAX_RESTARTS} times is enough.")
        message = f"{lost}; they start again from their last checkpoint."
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        self._end(group)
        found = self._try(self._begin, group)
        for question in self._asked:
            if isinstance(found, Exception):
                return found
            found = self._try(self._receive, group, self._try(self._send, group, question))
        return found

    def _try(self, call, group, *args):
        """Return the result of a call, or that the group is or was lost."""
        if group in self._lost or (args and isinstance(args[0], ActorLost)):
            return self._lost.get(group) or args[0]
        try:
            return call(group, *args)
        except ActorLost as lost:
            return lost

    def _parts(self, group):
        return [(self._arguments[i], self.checkpoints[i]) for i in self._numbers[group]]

    # Where a group lives

    def _begin(self, group):
        """Start a group."""
        self._groups[group] = ActorGroup(self._actor, self._parts(group))

    def _send(self, group, question):
        """Send a question, and return a ticket for the answer."""
        return question

    def _receive(self, group, ticket):
        """Return the answer to a question."""
        return self._groups[group].ask(*ticket, n_threads=None)

    def _end(self, group):
        """End a group; also one that never began."""
        self._groups[group] = None


class ProcessActors(Actors):
    """Actors in processes of this machine, one for each group."""

    def _begin(self, group):
        # Not waited for: processes start side by side.
        self._groups[group] = _Process(self._actor, self._parts(group))

    def _send(self, group, question):
        self._groups[group].send(question)

    def _receive(self, group, ticket):
        return self._groups[group].receive()

    def _end(self, group):
        if self._groups[group] is not None:
            self._groups[group].end()
        super()._end(group)


class _Process:
    """A process with a group of actors, and the pipe to it.

    Loky starts the process and sees whether it lives. Questions go by a pipe: loky's own queues
    take three or four times as long.
    """

    def __init__(self, *group: Any) -> None:
        from joblib.externals.loky.process_executor import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(
            max_workers=1, initializer=end_with_parent, initargs=(os.getpid(),)
        )
        self._here, self._there = multiprocessing.Pipe()
        self._task = self._pool.submit(_serve, self._there, *group)

    def send(self, question: tuple[Any, ...]) -> None:
        """Send a question."""
        if not self._there.closed:
            self.receive()  # that it is ready
            self._there.close()  # so that the pipe breaks when the process ends
        with contextlib.suppress(OSError):  # `receive` says what happened
            self._here.send(question)

    def receive(self) -> Any:
        """Return the next answer."""
        try:
            while not self._here.poll(_LOOK_EVERY):
                if self._task.done() and not self._here.poll():
                    raise EOFError
            return self._here.recv()
        except (EOFError, OSError) as error:
            with contextlib.suppress(BrokenProcessPool):
                self._task.result()  # raises an error that kept the process from answering
            raise ActorLost("with their process") from error

    def end(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=True, kill_workers=True)
        self._here.close()
        self._there.close()


def _serve(connection, actor, parts):
    """Answer questions to a group of actors until the other end of the pipe is closed."""
    try:
        group = ActorGroup(actor, parts)
    except Exception as error:
        group = error
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            question = connection.recv()
            connection.send(group if isinstance(group, Exception) else group.ask(*question))


class DaskActors(Actors):
    """Actors on the workers of a dask cluster.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    actor, arguments :
        As in `Actors`.
    workers : sequence of str, default=None
        The address of the worker of each actor, which is lost if it cannot be there. None spreads
        the actors over all workers, also over those that come later.
    **options
        As in `Actors`.
    """

    def __init__(
        self,
        client: Any,
        actor: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        *,
        workers: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._client, self._workers = client, workers
        self._futures: dict[int, Any] = {}
        n_groups = len(find_workers(client) if workers is None else arguments)
        super().__init__(actor, arguments, n_groups=n_groups, **options)

    def _begin(self, group):
        client, workers = self._client, self._workers
        if workers is None:
            workers = find_workers(client)
        there = {"workers": [workers[group % len(workers)]]}
        # A task for a dead worker alone would wait for ever.
        options = {"actor": True, "pure": False, "allow_other_workers": True, **there}
        try:
            with lost_workers(client):
                parts = client.scatter([self._parts(group)], hash=False, **there)[0]
                future = client.submit(ActorGroup, self._actor, parts, **options)
            wait_for(client, [future])
            # An actor keeps to the client of its process.
            with lost_workers(client), client.as_current():
                self._groups[group] = future.result()
                found = [] if self._workers is None else client.who_has([future])[future.key]
            self._futures[group] = future  # which keeps the actor alive
        except WorkerLost as error:
            raise ActorLost("with their dask worker") from error
        if self._workers is not None and list(found) != there["workers"]:
            self._end(group)
            raise ActorLost(f"with their dask worker {there['workers'][0]}")

    def _end(self, group):
        super()._end(group)
        self._futures.pop(group, None)

    def _send(self, group, question):
        with self._lost_if_failed():
            return self._groups[group].ask(*question)

    def _receive(self, group, ticket):
        with self._lost_if_failed():
            return ticket.result()

    @staticmethod
    @contextlib.contextmanager
    def _lost_if_failed():
        # Errors of actors are returned, not raised: any other is that of the cluster.
        try:
            yield
        except Exception as error:
            raise ActorLost(f"with their dask worker ({error})") from error


def _answer(found, place):
    """Return the answer of one of a group, or that it was lost; raise the error of an actor."""
    if isinstance(found, ActorLost):
        return found
    if isinstance(found, Exception):
        raise found
    return found[place]


def start_actors(
    actor: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    *,
    n_jobs: int | None = None,
    client: Any = None,
    **options: Any,
) -> Actors:
    """Return actors on a cluster, in several processes, or in this process; enter them to start.

    Parameters
    ----------
    actor : callable
        A class: ``actor(*arguments[i])`` makes actor i, with ``checkpoint=`` after a loss.
    arguments : sequence of tuple
        The arguments of each.
    n_jobs : int or None, default=None
        Processes, as in joblib.
    client : distributed.Client or None, default=None
        A dask cluster, which is used if it is given.
    **options
        `name` and `restart` of `Actors`; with a client, `workers` of `DaskActors`.
    """
    if client is not None:
        return DaskActors(client, actor, arguments, **options)
    n_processes = min(joblib.effective_n_jobs(n_jobs), len(arguments))
    if n_processes > 1:
        remove_leftovers()
        return ProcessActors(actor, arguments, n_groups=n_processes, **options)
    return Actors(actor, arguments, **options)
