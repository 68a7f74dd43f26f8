"""Killed parents: their processes end, and the next fit removes what they left."""

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from skdml.utils import _folders
from skdml.utils._folders import PrivateFolder, open_private, remove_leftovers

psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals and locks of POSIX")


def start(code, folder, **variables):
    """Start a script, with temporary files in a folder."""
    return psutil.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TMPDIR": str(folder), **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_and_wait(process):
    """Kill a process, and return those of its descendants that live on."""
    children = process.children(recursive=True)
    process.kill()
    process.wait()
    return children, psutil.wait_procs(children, timeout=30)[1]


def test_a_child_promises_to_end_before_its_module_is_imported(tmp_path):
    (tmp_path / "slow_import.py").write_text(
        "print('here', flush=True); import time; time.sleep(60)"
    )
    code = """
        import subprocess
        from skdml.utils._processes import command_of_child
        subprocess.Popen(command_of_child("slow_import")).wait()
    """
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = start(code, tmp_path, PYTHONPATH=path)
    assert parent.stdout.readline() == "here\n"
    children, left = kill_and_wait(parent)
    assert len(children) == 1
    assert left == []


def test_critics_end_with_a_killed_parent(tmp_path):
    pytest.importorskip("torch")
    code = """
        import numpy as np
        from torch import nn
        from skdml import WassersteinGenerator

        class Network(nn.Linear):
            def forward(self, Z):
                print("update", flush=True)
                return super().forward(Z)

        WassersteinGenerator(
            n_critics=2, n_jobs=2, module=Network(4, 8), latent_dim=4, max_iter=10**6
        ).fit(np.random.default_rng(0).normal(size=(500, 8)))
    """
    parent = start(code, tmp_path)
    for _ in range(10):  # the critics have answered, so their processes work
        assert parent.stdout.readline() == "update\n"
    critics = [c for c in parent.children() if "popen_loky" in " ".join(c.cmdline())]
    assert len(critics) == 2
    for critic in critics if sys.platform == "linux" else ():
        critic.suspend()  # busy ones would not see that their pipe is closed
    _, left = kill_and_wait(parent)
    for process in left:
        process.kill()
    assert left == []


# Folders


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_only_the_user_can_read_a_folder_and_its_files(tmp_path):
    with PrivateFolder(str(tmp_path)) as folder:
        assert mode(folder) == 0o700
        with open_private(folder / "file") as file:
            file.write(b"data")
        assert {path.name: mode(path) for path in folder.iterdir()} == {
            "file": 0o600,
            "lock": 0o600,
        }
    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_processes_are_removed_and_no_others(tmp_path):
    code = """
        import time
        from skdml.utils._folders import PrivateFolder
        folder = PrivateFolder()
        print(folder.path, flush=True)
        time.sleep(60)
    """
    dead, alive = (start(code, tmp_path) for _ in range(2))
    folders = [Path(process.stdout.readline().strip()) for process in (dead, alive)]
    kill_and_wait(dead)
    own = PrivateFolder(str(tmp_path))
    assert [folder.exists() for folder in (*folders, own.path)] == [False, True, True]
    remove_leftovers(str(tmp_path))
    assert folders[1].exists()
    assert own.path.exists()
    kill_and_wait(alive)
    own.remove()
    remove_leftovers(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_without_locks_no_folder_is_taken_for_a_leftover(tmp_path, monkeypatch):
    first = PrivateFolder(str(tmp_path))
    monkeypatch.setattr(_folders, "fcntl", None)
    monkeypatch.setattr(_folders, "msvcrt", None)
    second = PrivateFolder(str(tmp_path))
    assert first.path.exists()
    for folder in (first, second):
        folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_shared_memory_of_dead_processes_is_removed(tmp_path, monkeypatch):
    patterns = tuple(str(tmp_path / Path(old).name) for old in _folders._JOBLIB_PATTERNS)
    monkeypatch.setattr(_folders, "_JOBLIB_PATTERNS", patterns)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for process in (dead.pid, os.getpid()):
        (tmp_path / f"joblib_memmapping_folder_{process}_x").mkdir()
        (tmp_path / f"sem.loky-{process}-x").touch()
    remove_leftovers(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"joblib_memmapping_folder_{os.getpid()}_x",
        f"sem.loky-{os.getpid()}-x",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_is_named(tmp_path, size):
    (tmp_path / "file").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match=rf"No space left on the disk of {tmp_path}.*TMPDIR"),
        open_private(tmp_path / "file") as file,
    ):
        np.save(file, np.zeros(size))
