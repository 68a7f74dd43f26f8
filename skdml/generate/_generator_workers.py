"""Where critics live: in this process, in processes of their own, or on dask workers.

Every crew does the same: it asks all critics the same question and returns their answers in order.
Critics keep their rows, networks and costs; questions and answers have points, potentials, masses
and gradients. joblib's loky starts the processes, dask's actors are the critics of a cluster.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

import joblib
import numpy as np
from numpy.typing import NDArray

from .._cluster import WorkerLost, find_workers, lost_workers, wait_for
from .._parallel import limit_threads
from ..utils._folders import remove_leftovers
from ..utils._processes import end_with_parent
from ._critics import Critic, CriticSettings

# How often critics may be lost in one fit.
_MAX_RESTARTS = 20
# Seconds after which a process that does not answer is looked for.
_LOOK_EVERY = 0.2


class Lost(Exception):
    """The process of some critics is gone."""


class CriticGroup:
    """Critics that share a process.

    Parameters
    ----------
    critics : sequence of (number, rows, checkpoint)
        What each starts from.
    settings : CriticSettings
        What all critics share.
    """

    def __init__(
        self, critics: Sequence[tuple[int, NDArray, Any]], settings: CriticSettings
    ) -> None:
        self.critics = [
            Critic(number, rows, settings, checkpoint) for number, rows, checkpoint in critics
        ]

    def ask(self, method: str, args: Sequence[Any]) -> Any:
        """Return the answers of the critics, or the error of one of them."""
        try:
            return [getattr(critic, method)(*args) for critic in self.critics]
        except Exception as error:
            return error

    def ask_alone(self, method: str, args: Sequence[Any]) -> Any:
        """Do the same on one thread, which other work of the process need not keep to."""
        with limit_threads(1):
            return self.ask(method, args)


class Crew:
    """All critics of a fit, as groups; in this class they live in this process.

    Subclasses say where a group lives: `_begin`, `_send`, `_receive` and `_end`.

    Parameters
    ----------
    shards : sequence of ndarray
        The rows of each critic.
    settings : CriticSettings
        What all critics share.
    n_groups : int, default=1
        Over how many groups the critics are spread.

    Attributes
    ----------
    n_restarts : int
        How often a group was lost.
    traffic : Counter
        Bytes of numbers to and from one critic, by method.
    """

    def __init__(
        self, shards: Sequence[NDArray], settings: CriticSettings, n_groups: int = 1
    ) -> None:
        self._shards, self._settings = shards, settings
        self._numbers = [
            list(range(first, len(shards), n_groups)) for first in range(min(n_groups, len(shards)))
        ]
        self._checkpoints: list[Any] = [None] * len(shards)
        self._asked: list[tuple[str, Sequence[Any]]] = []
        self._groups: list[Any] = [None] * len(self._numbers)
        self.n_restarts = 0
        self.traffic: Counter[str] = Counter()

    def __enter__(self) -> Self:
        try:
            for place in range(len(self._groups)):
                found = self._try(self._begin, place)
                while isinstance(found, Lost):
                    found = self._restart(place, found)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for place in range(len(self._groups)):
            self._end(place)

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Ask every critic, and return the answers in order.

        Parameters
        ----------
        method : str
            The method of `Critic` to call.
        *args
            Its arguments.

        Returns
        -------
        answers : list
            One for each critic.
        """
        if method not in ("masses", "finish"):  # what these go on from has to be asked again
            self._asked = []
        self._asked.append((method, args))
        sent = [self._try(self._send, place, method, args) for place in range(len(self._groups))]
        answers = [None] * len(self._shards)
        for place, ticket in enumerate(sent):
            found = self._try(self._receive, place, ticket)
            while isinstance(found, Lost):
                found = self._restart(place, found)
            if isinstance(found, Exception):
                raise found
            for number, answer in zip(self._numbers[place], found, strict=True):
                answers[number] = answer
        self.traffic[method] += _nbytes(args) + _nbytes(answers[0])
        return answers

    def keep_checkpoints(self) -> None:
        """Fetch the state of every critic, to go on from when one is lost."""
        self._checkpoints = self.ask("checkpoint")

    @property
    def checkpoints(self) -> list[bytes | None]:
        """The last state of every critic."""
        return self._checkpoints

    def _parts(self, place):
        return [
            (number, self._shards[number], self._checkpoints[number])
            for number in self._numbers[place]
        ]

    def _restart(self, place, lost):
        """Start a group again from its checkpoints, and ask it all of this update once more."""
        self.n_restarts += 1
        names = ", ".join(map(str, self._numbers[place]))
        if self.n_restarts > _MAX_RESTARTS:
            raise RuntimeError(
                f"critics {names} were lost, {lost}; {_MAX_RESTARTS} times is enough."
            )
        warnings.warn(
            f"critics {names} were lost, {lost}; they start again from their last checkpoint.",
            RuntimeWarning,
            stacklevel=2,
        )
        self._end(place)
        found = self._try(self._begin, place)
        for method, args in self._asked:
            if isinstance(found, Exception):
                return found
            ticket = self._try(self._send, place, method, args)
            found = self._try(self._receive, place, ticket)
        return found

    @staticmethod
    def _try(call, place, *args):
        if args and isinstance(args[0], Lost):
            return args[0]
        try:
            return call(place, *args)
        except Lost as lost:
            return lost

    # Where a group lives

    def _begin(self, place):
        """Start a group."""
        self._groups[place] = CriticGroup(self._parts(place), self._settings)

    def _send(self, place, method, args):
        """Send a question, and return a ticket for the answer."""
        return method, args

    def _receive(self, place, ticket):
        """Return the answer to a question."""
        return self._groups[place].ask(*ticket)

    def _end(self, place):
        """End a group; also one that never began."""
        self._groups[place] = None


class ProcessCrew(Crew):
    """Critics in processes of this machine: one for each group.

    Loky starts the processes and sees whether they live. Questions go by pipes: loky's own queues
    take three or four times as long, and there are several questions in an update.
    """

    def _begin(self, place):
        # Not waited for: processes start side by side.
        self._groups[place] = _GroupProcess(self._parts(place), self._settings)

    def _send(self, place, method, args):
        self._groups[place].send((method, args))

    def _receive(self, place, ticket):
        return self._groups[place].receive()

    def _end(self, place):
        if self._groups[place] is not None:
            self._groups[place].end()
            self._groups[place] = None


class _GroupProcess:
    """A process with a group of critics, and the pipe to it.

    Parameters
    ----------
    critics, settings : sequence, CriticSettings
        As in `CriticGroup`.
    """

    def __init__(self, critics: Sequence[Any], settings: CriticSettings) -> None:
        from joblib.externals.loky.process_executor import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(
            max_workers=1, initializer=end_with_parent, initargs=(os.getpid(),)
        )
        self._here, self._there = multiprocessing.Pipe()
        self._task = self._pool.submit(_serve, self._there, critics, settings)

    def send(self, question: tuple[str, Sequence[Any]]) -> None:
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
            raise Lost("with their process") from error

    def end(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=True, kill_workers=True)
        self._here.close()
        self._there.close()


def _serve(connection, critics, settings):
    """Answer questions to a group of critics until the other end of the pipe is closed."""
    try:
        group = CriticGroup(critics, settings)
    except Exception as error:
        group = error
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            question = connection.recv()
            connection.send(group if isinstance(group, Exception) else group.ask_alone(*question))


class DaskCrew(Crew):
    """Critics on the workers of a dask cluster, as actors.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    shards, settings : sequence of ndarray, CriticSettings
        As in `Crew`.
    """

    def __init__(self, client: Any, shards: Sequence[NDArray], settings: CriticSettings) -> None:
        self._client = client
        self._futures: dict[int, Any] = {}
        super().__init__(shards, settings, len(find_workers(client)))

    def _begin(self, place):
        client = self._client
        workers = find_workers(client)
        there = {"workers": [workers[place % len(workers)]]}
        options = {"actor": True, "pure": False, "allow_other_workers": True, **there}
        try:
            with lost_workers(client):
                parts = client.scatter([self._parts(place)], hash=False, **there)[0]
                future = client.submit(CriticGroup, parts, self._settings, **options)
            wait_for(client, [future])
            # An actor keeps to the client of its process.
            with lost_workers(client), client.as_current():
                self._groups[place] = future.result()
            self._futures[place] = future  # which keeps the actor alive
        except WorkerLost as error:
            raise Lost("with their dask worker") from error

    def _end(self, place):
        super()._end(place)
        self._futures.pop(place, None)

    def _send(self, place, method, args):
        with self._lost_if_failed():
            return self._groups[place].ask_alone(method, args)

    def _receive(self, place, ticket):
        with self._lost_if_failed():
            return ticket.result()

    @staticmethod
    @contextlib.contextmanager
    def _lost_if_failed():
        # Errors of critics are returned, not raised: any other is that of the cluster.
        try:
            yield
        except Exception as error:
            raise Lost(f"with their dask worker ({error})") from error


def _nbytes(value):
    """Return the bytes of the numbers in arguments or answers."""
    if isinstance(value, tuple):
        return sum(map(_nbytes, value))
    if isinstance(value, bytes):
        return len(value)
    return 0 if value is None else np.asarray(value).nbytes


def make_crew(
    shards: Sequence[NDArray], settings: CriticSettings, n_jobs: int | None, client: Any
) -> Crew:
    """Return the crew for a fit: of a cluster, of several processes, or of this process."""
    if client is not None:
        return DaskCrew(client, shards, settings)
    n_processes = min(joblib.effective_n_jobs(n_jobs), len(shards))
    if n_processes > 1:
        remove_leftovers()
        return ProcessCrew(shards, settings, n_processes)
    return Crew(shards, settings)
