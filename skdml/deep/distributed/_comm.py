"""Communication between ranks: groups, bytes and waiting, and the loss of the gathered batch."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...utils._torch import seeded_torch
from ..losses._core import anchors_within

# What is sent, each over connections of its own, so that it can be counted.
CHANNELS = ("head", "backbone", "mining")
# Processes may take long to import packages before they meet.
START_SECONDS = 180.0
# Where Linux has `tcpi_bytes_sent` in its `struct tcp_info`, followed by `tcpi_bytes_retrans`.
_BYTES_SENT, _LENGTH = 200, 216


def is_communication_error(error: BaseException) -> bool:
    """Tell whether an error came from the network between ranks: another rank is the cause."""
    text = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(name in text for name in ("gloo", "NCCL", "TCPStore"))
    )


class Heartbeat:
    """A counter in a file, which others can read while this process is busy or gone.

    Parameters
    ----------
    path : path-like
        The file.
    """

    def __init__(self, path: Any) -> None:
        self._count = np.memmap(path, np.uint64, mode="w+", shape=1)

    def beat(self) -> None:
        """Count on."""
        self._count += 1

    @staticmethod
    def read(path: Any) -> int:
        """Return the count of a file, 0 where there is none."""
        try:
            return int(np.fromfile(path, np.uint64)[0])
        except (OSError, IndexError):
            return 0


class Ranks:
    """The processes that train together, as one of them sees it.

    The default process group must exist. Every method with communication is called by all ranks,
    in the same order.

    Parameters
    ----------
    timeout : float
        Seconds after which waiting for another rank is an error.
    heartbeat : Heartbeat, default=None
        Counts every step towards the others, so that the one that hangs can be found.

    Attributes
    ----------
    rank, size : int
        Which of how many.
    waited : float
        Seconds spent waiting for others and for the network.
    """

    def __init__(self, timeout: float, heartbeat: Heartbeat | None = None) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.left, self.right = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        self.waited = 0.0
        self._timeout = timedelta(seconds=timeout)
        self._heartbeat = heartbeat
        self.groups: dict[str, Any] = {}
        self._sockets: dict[str, set[int]] = {}
        for channel in CHANNELS:
            before = _open_sockets()
            self.groups[channel] = dist.new_group(timeout=self._timeout)
            # The first messages open the connections of a group.
            dist.all_reduce(torch.zeros(self.size), group=self.groups[channel])
            if channel == "backbone" and self.size > 1:
                self.finish(self.shift(torch.zeros(1)))
            self._sockets[channel] = set(_open_sockets()) - set(before)
        self.barrier()
        self._start = self._sent()

    def close(self) -> None:
        """Leave the groups."""
        for group in self.groups.values():
            dist.destroy_process_group(group)
        self.groups = {}

    # Time and traffic

    def beat(self) -> None:
        """Show that this rank is alive."""
        if self._heartbeat is not None:
            self._heartbeat.beat()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting."""
        self.beat()
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - start

    def _sent(self):
        return {channel: _bytes_sent(inodes) for channel, inodes in self._sockets.items()}

    def start_counting(self) -> None:
        """Count bytes and waiting from here on."""
        self._start, self.waited = self._sent(), 0.0

    def traffic(self) -> dict[str, float]:
        """Return the bytes sent over each channel since `start_counting`; NaN if not known."""
        return {channel: sent - self._start[channel] for channel, sent in self._sent().items()}

    # Communication

    def barrier(self) -> None:
        """Wait for all."""
        self.sum(torch.zeros(1))

    def sum(self, tensor: Tensor, channel: str = "mining") -> Tensor:
        """Add a tensor up over the ranks, in place."""
        with self.waiting():
            dist.all_reduce(tensor, group=self.groups[channel])
        return tensor

    def mean(self, value: float) -> float:
        """Return the mean of a number over the ranks."""
        return float(self.sum(torch.tensor([value], dtype=torch.float64))) / self.size

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is set on any rank."""
        return bool(self.sum(torch.tensor([int(flag)])) > 0)

    def copy_from_first(self, tensors: list[Tensor]) -> None:
        """Overwrite tensors by those of rank 0."""
        with self.waiting():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0, group=self.groups["backbone"])

    def object_of_first(self, value: Any) -> Any:
        """Return the object of rank 0."""
        values = [value]
        with self.waiting():
            dist.broadcast_object_list(values, 0, group=self.groups["mining"])
        return values[0]

    def all_objects(self, value: Any) -> list:
        """Return the objects of all ranks."""
        values = [None] * self.size
        with self.waiting():
            dist.all_gather_object(values, value, group=self.groups["mining"])
        return values

    def shift(self, tensor: Tensor) -> tuple[Tensor, list]:
        """Begin to send a tensor to the right, and to receive that of the left neighbour.

        The tensor must stay as it is until `finish`.
        """
        received, group = torch.empty_like(tensor), self.groups["backbone"]
        works = [
            dist.isend(tensor, self.right, group=group),
            dist.irecv(received, self.left, group=group),
        ]
        return received, works

    def finish(self, shifted: tuple[Tensor, list]) -> Tensor:
        """Wait for what `shift` began, and return what came."""
        received, works = shifted
        with self.waiting():
            for work in works:
                work.wait(self._timeout)
        return received

    def gather(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, slice]:
        """Gather the rows and labels of all ranks, which may have different numbers of them.

        Parameters
        ----------
        rows : Tensor of shape (n_own, features)
            Embeddings. What comes back has no gradient.
        labels : Tensor of shape (n_own,)
            Whole numbers.

        Returns
        -------
        rows : Tensor of shape (n_all, features)
            In the order of the ranks.
        labels : Tensor of shape (n_all,)
            Likewise.
        own : slice
            Where the rows of this rank are.
        """
        group, rows, labels = self.groups["mining"], rows.detach(), labels.to(torch.int64)
        with self.waiting():
            sizes = rows.new_empty(self.size, dtype=torch.int64)
            dist.all_gather(list(sizes.split(1)), sizes.new_tensor([len(rows)]), group=group)
            counts = sizes.tolist()
            # Rows and labels as bytes, in one message, padded to the longest.
            parts = [
                rows.contiguous().view(torch.uint8),
                labels[:, None].contiguous().view(torch.uint8),
            ]
            packed = parts[0].new_zeros(max(counts), sum(part.shape[1] for part in parts))
            packed[: len(rows)] = torch.cat(parts, dim=1)
            found = packed.new_empty(self.size, *packed.shape)
            dist.all_gather(list(found), packed, group=group)
        found = torch.cat([block[:count] for block, count in zip(found, counts, strict=True)])
        width = parts[0].shape[1]
        start = sum(counts[: self.rank])
        return (
            found[:, :width].contiguous().view(rows.dtype),
            found[:, width:].contiguous().view(torch.int64)[:, 0],
            slice(start, start + counts[self.rank]),
        )


@contextlib.contextmanager
def process_group(timeout: float, heartbeat: Heartbeat | None = None) -> Iterator[Ranks]:
    """Join the other ranks, as the environment says, and leave them at the end.

    Parameters
    ----------
    timeout : float
        Seconds after which waiting for another rank is an error.
    heartbeat : Heartbeat, default=None
        See `Ranks`.

    Yields
    ------
    ranks : Ranks
        The processes.
    """
    is_ours = not dist.is_initialized()
    if is_ours:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        patience = timedelta(seconds=max(timeout, START_SECONDS))
        dist.init_process_group(backend, timeout=patience)
    try:
        ranks = Ranks(timeout, heartbeat)
        yield ranks
        ranks.barrier()
        ranks.close()
    finally:
        if is_ours:
            dist.destroy_process_group()


def _open_sockets():
    """Return the sockets of this process, inode to descriptor; none where there is no /proc."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, as that of the listing itself
                target = os.readlink(f"/proc/self/fd/{name}")
                if target.startswith("socket:["):
                    found[int(target[8:-1])] = int(name)
    return found


def _bytes_sent(inodes):
    """Return the bytes that some sockets have sent, without what TCP had to send again.

    The sockets are keys of `_open_sockets`. NaN where the system does not count them.
    """
    now, total, is_known = _open_sockets(), 0, False
    for inode in inodes & set(now):
        try:
            with socket.socket(fileno=os.dup(now[inode])) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
        except OSError:  # not a TCP socket
            continue
        if len(info) == _LENGTH:
            sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT)
            total, is_known = total + sent - again, True
    return total if is_known else math.nan


class GatheredLoss(nn.Module):
    """The loss of the gathered batch of all ranks, or of the local batch.

    Every rank computes the loss of the gathered batch, with the rows of the others as constants.
    The gradient by its own rows is then exact, although nothing is sent back: what the others'
    loss terms say of these rows is in the gathered batch on this rank, too. The gradient by the
    weights is the sum over ranks. As gradients are averaged over ranks later, they are scaled by
    the number of ranks here.

    Parameters
    ----------
    loss : callable
        Of embeddings and labels.
    ranks : Ranks
        The processes.
    options : Distributed
        Its `gather` and `remote_grad`. Without `remote_grad`, losses over pairs count the own
        anchors only; the others know no anchors and are not changed.
    seed : int
        Seeds what a loss draws at random, the same on all ranks.
    """

    def __init__(self, loss: Any, ranks: Ranks, options: Any, seed: int) -> None:
        super().__init__()
        self.loss = loss
        self._ranks, self._options, self._seed = ranks, options, seed
        self.step = 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss."""
        self.step += 1
        if not self._options.gather:
            return self.loss(embeddings, labels)
        rows, labels, own = self._ranks.gather(embeddings, labels)
        own_rows = embeddings.view_as(embeddings)
        if own_rows.requires_grad:
            own_rows.register_hook(lambda grad: grad * self._ranks.size)
        rows = torch.cat([rows[: own.start], own_rows, rows[own.stop :]])
        anchors = None if self._options.remote_grad else own
        with seeded_torch(self._seed + self.step), anchors_within(anchors):
            return self.loss(rows, labels)
