"""Which sockets of a tree of processes wait for connections."""

import contextlib
import threading

import psutil


class Listeners:
    """Notes the addresses at which this process's descendants, or others', listen.

    Parameters
    ----------
    roots : sequence of int
        The processes whose descendants are looked at.
    word : str
        Only processes with it in their command are.
    """

    def __init__(self, roots, word=""):
        self.roots, self.word = [psutil.Process(root) for root in roots], word
        self.addresses, self.n_looks = set(), 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self._end.wait(0.1):
            for root in self.roots:
                with contextlib.suppress(psutil.Error):
                    self._look(root.children(recursive=True))

    def _look(self, processes):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if self.word not in " ".join(process.cmdline()):
                    continue
                self.n_looks += 1
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN:
                        self.addresses.add(connection.laddr.ip)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._end.set()
        self._thread.join()
