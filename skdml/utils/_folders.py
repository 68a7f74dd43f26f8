"""Temporary folders for data of a fit: private, and removed even if the process is killed."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

fcntl: Any
msvcrt: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # anywhere else
    msvcrt = None

# What joblib's processes leave behind when all of them are killed; the number is the process.
_JOBLIB_PATTERNS = ("/dev/shm/joblib_memmapping_folder_{}_*", "/dev/shm/sem.loky-{}-*")
# numpy writes large arrays itself, and has no number for a file that stays too short.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, None)


class PrivateFolder:
    """A temporary folder that only this user can read.

    Its lock is held as long as this process lives: who can take it may remove the folder.

    Parameters
    ----------
    parent : str, default=None
        The folder to make it in, by default that of the system.
    """

    def __init__(self, parent: str | None = None) -> None:
        remove_leftovers(parent)
        self.path = Path(tempfile.mkdtemp(prefix="skdml-", dir=parent))
        # The lock gets its name once it is held, so nobody finds one that is free too early.
        # Windows cannot give an open file another name.
        draft = self.path / ("lock" if os.name == "nt" else ".lock")
        self._lock: int | None = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        _take(self._lock)
        os.replace(draft, self.path / "lock")

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self._lock is not None:
            if os.name != "nt":  # where an open file cannot be removed
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None
            shutil.rmtree(self.path, ignore_errors=True)


def _take(lock):
    """Lock an open file for this process; OSError if another one has it."""
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)


def remove_leftovers(parent: str | None = None) -> None:
    """Remove what fits of this user left behind whose processes were killed.

    Parameters
    ----------
    parent : str, default=None
        Where their folders are, by default that of the system.
    """
    # Without locks nobody can tell which folders are in use.
    has_locks = fcntl is not None or msvcrt is not None
    folders = os.path.join(parent or tempfile.gettempdir(), "skdml-*", "lock")
    for name in glob.glob(folders) if has_locks else ():
        with contextlib.suppress(OSError):  # of another user, alive, or removed by another fit
            lock = os.open(name, os.O_RDWR)
            try:
                _take(lock)
                if os.name != "nt":
                    shutil.rmtree(os.path.dirname(name), ignore_errors=True)
            finally:
                os.close(lock)
            shutil.rmtree(os.path.dirname(name), ignore_errors=True)
    if not hasattr(os, "getuid"):  # no POSIX, and no such files
        return
    for pattern in _JOBLIB_PATTERNS:
        head, tail = pattern.split("{}")
        for name in glob.glob(pattern.format("*")):
            process = name[len(head) :].split(tail[0])[0]
            with contextlib.suppress(OSError):
                is_own = process.isdecimal() and os.stat(name).st_uid == os.getuid()
                if is_own and not _is_alive(int(process)):
                    shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)


def _is_alive(process):
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@contextlib.contextmanager
def open_private(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that only this user can read, and name its folder if it is full."""
    try:
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            yield file
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise full_disk(path.parent) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name first: who finds it finds all of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open_private(draft) as file:
        file.write(content)
    os.replace(draft, path)


def full_disk(folder: Path) -> OSError:
    """Return the error of a full disk."""
    return OSError(
        errno.ENOSPC,
        f"No space left on the disk of {folder}: free some, or set TMPDIR to a folder on a larger "
        "disk",
    )
