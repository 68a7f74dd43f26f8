"""Hosts on a network of their own: network namespaces of this machine, joined by a bridge."""

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

_ROOT = Path(__file__).parents[1]


class NoHosts(RuntimeError):
    """This machine does not let us make networks: it takes Linux, root and iproute2."""


class Hosts:
    """Some hosts that reach one another, and nothing else; a context manager.

    Parameters
    ----------
    n_hosts : int
        How many.

    Attributes
    ----------
    addresses : list of str
        Of each host on the network that they share.
    """

    def __init__(self, n_hosts):
        self._name = f"skdml-{uuid.uuid4().hex[:6]}"
        self.addresses = [f"10.77.0.{host + 1}" for host in range(n_hosts)]
        self._processes = []

    def __enter__(self):
        try:
            self._run("netns", "add", self._space())
            self._run("-n", self._space(), "link", "add", "bridge", "type", "bridge")
            self._run("-n", self._space(), "link", "set", "bridge", "up")
            for host, address in enumerate(self.addresses):
                there = "-n", self._space(host)
                self._run("netns", "add", self._space(host))
                self._run(
                    *("-n", self._space(), "link", "add", f"port{host}", "type", "veth"),
                    *("peer", "name", "eth0", "netns", self._space(host)),
                )
                self._run("-n", self._space(), "link", "set", f"port{host}", "master", "bridge")
                self._run("-n", self._space(), "link", "set", f"port{host}", "up")
                self._run(*there, "address", "add", f"{address}/24", "dev", "eth0")
                self._run(*there, "link", "set", "lo", "up")
                self._run(*there, "link", "set", "eth0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            raise NoHosts(str(error)) from error
        return self

    def __exit__(self, *exc_info):
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        for host in [*range(len(self.addresses)), None]:
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                # also what a process of a host has left behind
                found = self._run("netns", "pids", self._space(host)).stdout.split()
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
                self._run("netns", "del", self._space(host))

    def _space(self, host=None):
        """Return the name of a namespace; None is that of the bridge."""
        return f"{self._name}-{'net' if host is None else host}"

    def _run(self, *words):
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def start(self, host, *words, folder=None, **variables):
        """Start a program on a host, whose name is its address; all output goes to its stdout."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            **variables,
        }
        # torchrun tells the others the name of its host, which they must be able to find
        named = "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.addresses[host]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._space(host), *named, *words],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def cut_off(self, host):
        """Take a host's network down, without a word to those that it talks to."""
        self._run("-n", self._space(), "link", "set", f"port{host}", "down")
