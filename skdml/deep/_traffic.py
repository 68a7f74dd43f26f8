"""Bytes that a process has sent, read from its own sockets."""

from __future__ import annotations

import os
import socket
import struct

# Where Linux has `tcpi_bytes_sent` in its `struct tcp_info`, followed by `tcpi_bytes_retrans`.
_BYTES_SENT, _LENGTH = 200, 216


def open_sockets() -> dict[int, int]:
    """Return the sockets of this process, inode to descriptor; none where there is no /proc."""
    found = {}
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return {}
    for name in descriptors:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # closed meanwhile, as the descriptor of the listing itself
            continue
        if target.startswith("socket:["):
            found[int(target[8:-1])] = int(name)
    return found


def bytes_sent(inodes: set[int]) -> int | None:
    """Return the bytes that some sockets have sent, without what TCP had to send again.

    Parameters
    ----------
    inodes : set of int
        Keys of `open_sockets`.

    Returns
    -------
    n_bytes : int or None
        None where the system does not count them.
    """
    now, total, is_known = open_sockets(), 0, False
    for inode in inodes & set(now):
        try:
            with socket.socket(fileno=os.dup(now[inode])) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
        except OSError:  # not a TCP socket
            continue
        if len(info) == _LENGTH:
            sent, again = struct.unpack_from("=QQ", info, _BYTES_SENT)
            total, is_known = total + sent - again, True
    return total if is_known else None
