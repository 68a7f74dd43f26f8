"""The core where calls of POSIX are missing, as on Windows; the rest is still of this system."""

import subprocess
import sys

WITHOUT_POSIX = """
import os, sys
import joblib, sklearn.ensemble, sklearn.neighbors, tqdm, tempfile, shutil, subprocess
import multiprocessing, ctypes, runpy, threading, scipy.sparse.linalg, scipy.stats
names = ("fork", "forkpty", "sysconf", "getuid", "geteuid", "killpg", "setsid", "getpgid", "wait",
         "waitstatus_to_exitcode", "sched_getaffinity", "statvfs", "mkfifo", "uname")
for name in names:
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "posix"):
    sys.modules[name] = None

import numpy as np
from skdml import *
from skdml.utils._folders import PrivateFolder
from skdml.utils.validation import refuse_if_too_large

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)); y = np.arange(60) % 3; X[:, 0] += y
quick = {"random_state": 0}
for model in (GMMLTransformer(**quick), DITMLTransformer(**quick), LMNN(**quick), RCA(), LFDA(),
              NeighborhoodGerrymandering(max_iter=2, **quick),
              AsymmetricMetricClassifier(max_iter=2, **quick), GMMLTransformer(n_jobs=2, **quick)):
    model.fit(X, y)
MLKR(**quick).fit(X, X[:, 0])
LocalGMMLRanker(**quick).fit(X, y, qid=np.arange(60) // 6)
refuse_if_too_large((10, 10), "an array", "")
with PrivateFolder() as folder:
    assert folder.exists()
assert not folder.exists()
print("works")
"""


def test_core_needs_no_call_of_posix():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "works"
