"""Fits on several ranks: scripts, sessions, pipelines, torchrun."""

import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

torch = pytest.importorskip("torch")
pytest.importorskip("skorch")
pytest.importorskip("psutil")

from skorch.callbacks import Callback, Checkpoint  # noqa: E402

from skdml import DeepMetricEmbedder  # noqa: E402
from skdml.deep import Distributed, distributed  # noqa: E402
from skdml.deep._data import classes_of_rank, count_batches  # noqa: E402
from tests.deep import rank_toys as toys  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:400] / 16, y[:400], X[400:800] / 16, y[400:800]


def quick(**params):
    defaults = {
        "max_epochs": 2,
        "module__hidden": (32,),
        "classes_per_batch": 5,
        "n_workers": 2,
        "random_state": 0,
    }
    return toys.make_embedder(**{**defaults, **params})


class Affine(torch.nn.Module):
    """A module of a user, without a part `head`."""

    def __init__(self, n_features):
        super().__init__()
        self.layer = torch.nn.Linear(n_features, 7)

    def forward(self, X):
        return self.layer(X)


class Note(Callback):
    """Notes on which ranks it runs."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, net, **kwargs):
        (self.folder / f"rank-{os.environ['RANK']}").touch()


# One fit, many questions: starting processes takes seconds.


@pytest.fixture(scope="module")
def fitted(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("callbacks")
    patch = pytest.MonkeyPatch()
    mark = toys.new_mark(patch)
    model = quick(
        sync="hybrid",
        validation_fraction=0.2,
        early_stopping=True,
        callbacks=[Note(folder), Checkpoint(monitor=None, dirname=folder)],
    )
    pipeline = make_pipeline(model, KNeighborsClassifier(3)).fit(*digits[:2])
    left = toys.marked(mark)
    patch.undo()
    return pipeline, folder, left


def test_works_in_a_pipeline_and_leaves_no_process(fitted, digits):
    pipeline, _, left = fitted
    assert pipeline.score(*digits[2:]) > 0.7
    assert left == []


def test_attributes_of_a_distributed_fit(fitted):
    model = fitted[0][0]
    assert set(model.history_) >= {"loss", "valid_recall", "seconds"}
    assert len(model.history_["loss"]) == 2
    assert all(0 < recall <= 1 for recall in model.history_["valid_recall"])
    assert model.consensus_.shape == (2,)
    assert model.consensus_[1] > 0
    assert set(model.timing_) == {"compute", "communication"}
    assert min(model.timing_.values()) > 0
    n_ring = 64 * 32 + 32 + 4 * 32
    if sys.platform == "linux":
        assert 4 * n_ring <= model.traffic_["backbone"] < 4 * n_ring + 400
        assert 0 < model.traffic_["head"] < 4 * 64 * 33 + 800
        assert model.traffic_["mining"] > 25 * 64 * 4
    assert model.net_.optimizer_.param_groups[0]["lr"] == pytest.approx(0, abs=1e-8)


def test_the_fitted_estimator_is_as_any_other(fitted, digits):
    model = fitted[0][0]
    stored = pickle.dumps(model)
    assert len(stored) < 300_000
    np.testing.assert_array_equal(
        pickle.loads(stored).transform(digits[2]), model.transform(digits[2])
    )
    assert type(model.net_).__name__ == "MetricNet"


def test_callbacks_run_on_every_rank_but_one_writes(fitted):
    names = {path.name for path in fitted[1].iterdir()}
    assert {"rank-0", "rank-1", "params.pt"} <= names


# Without processes


def test_ranks_have_their_own_classes_if_there_are_enough():
    for number in range(3):
        shares = [classes_of_rank(10, rank, 3, seed=4, number=number) for rank in range(3)]
        np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.arange(10))
    first, second = (classes_of_rank(10, 0, 3, seed=4, number=number) for number in range(2))
    assert set(first) != set(second)


def test_the_batches_of_all_ranks_hold_the_samples():
    assert count_batches(np.repeat(np.arange(10), 7), 3, 5, n_ranks=3) == 60
    large = np.repeat(np.arange(10), 1000)
    assert count_batches(large, 2, 5, n_ranks=4) == 10_000 // 40
    assert count_batches(large, 2, 5, copies=4) == 4 * 10_000 // 10


def test_a_client_is_shared_by_clones_and_not_stored():
    client = object()  # cannot be copied in any useful way, as a real one
    model = quick(client=client)
    assert clone(model).distributed.client is client
    assert model.get_params()["distributed__client"] is client
    assert pickle.loads(pickle.dumps(model)).distributed.client is None


def test_wrong_parameters_are_named(digits):
    for wrong in ({"ring_mix": 2.0}, {"n_workers": 0}, {"port": 0}):
        with pytest.raises(ValueError, match=f"The '{next(iter(wrong))}' parameter"):
            quick(**wrong).fit(*digits[:2])
    with pytest.raises(ValueError, match="sync must be one of 'allreduce', 'hybrid', got 'ring'"):
        quick(sync="ring").fit(*digits[:2])
    with pytest.raises(ValueError, match=r"compression='fp16' is of gradients .* sync='allreduce'"):
        quick(sync="hybrid", compression="fp16").fit(*digits[:2])
    with pytest.raises(ValueError, match="n_workers=2, but distributed has n_workers=3"):
        quick(distributed=Distributed(3)).fit(*digits[:2])
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client"):
        quick(client="tcp://somewhere").fit(*digits[:2])
    lock = threading.Lock()
    with pytest.raises(TypeError, match="augment cannot be sent to other processes"):
        quick(augment=lambda X: (lock, X)[1]).fit(*digits[:2])
    with pytest.raises(TypeError, match="register_sync takes a name and a class, got 'mine' and 3"):
        distributed.register_sync("mine", 3)
    with pytest.raises(RuntimeError, match="WORLD_SIZE and RANK not set"):
        distributed.run(quick(), *digits[:2])


def test_torchrun_has_the_last_word_on_the_number_of_ranks(digits, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="n_workers=2, but WORLD_SIZE=4"):
        quick().fit(*digits[:2])


# Slow: more processes


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(digits):
    X, y, X_test, _ = digits
    for params in ({"n_workers": 3}, {"n_workers": 3, "sync": "hybrid", "remote_grad": True}):
        first = quick(**params).fit(X, y).transform(X_test)
        np.testing.assert_array_equal(first, quick(**params).fit(X, y).transform(X_test))


@pytest.mark.slow
def test_errors_of_a_rank_come_up_as_they_are(digits, monkeypatch):
    mark = toys.new_mark(monkeypatch)
    with pytest.raises(ValueError, match=r"needs a module with a part `head`.*sync='allreduce'"):
        DeepMetricEmbedder(Affine, distributed=Distributed(2, sync="hybrid")).fit(*digits[:2])
    model = DeepMetricEmbedder(Affine, max_epochs=1, n_workers=2, random_state=0)
    assert model.fit(*digits[:2]).transform(digits[2]).shape == (400, 7)
    assert model.consensus_[0] == 0
    with pytest.raises(ZeroDivisionError) as caught:
        quick(loss=lambda embeddings, labels: 1 / 0).fit(*digits[:2])
    assert "Raised on rank" in caught.value.__notes__[0]
    assert toys.marked(mark) == []


@pytest.mark.slow
def test_a_loss_that_is_not_finite_on_one_rank_ends_all(digits):
    def fragile(embeddings, labels):
        value = embeddings.square().mean()
        fragile.calls = getattr(fragile, "calls", 0) + 1
        is_last = fragile.calls == 70 and os.environ["RANK"] == "1"
        return value * (float("nan") if is_last else 1.0)

    from sklearn.exceptions import ConvergenceWarning

    with pytest.warns(ConvergenceWarning, match="weights of epoch 1 are kept"):
        model = quick(loss=fragile, gather=False).fit(*digits[:2])
    assert np.isfinite(model.transform(digits[2])).all()


SCRIPT = """
import joblib
import numpy as np
from sklearn.datasets import load_digits
from torch import nn
from skdml import DeepMetricEmbedder

class Mine(nn.Module):
    def __init__(self, n_features, n_components):
        super().__init__()
        self.backbone, self.head = nn.Linear(n_features, 16), nn.Linear(16, n_components)

    def forward(self, X):
        return self.head(self.backbone(X).relu())

X, y = load_digits(return_X_y=True)
model = DeepMetricEmbedder(Mine, max_epochs=1, n_workers=2, random_state=0)
model.fit(X[:400] / 16, y[:400])
assert type(model.module_) is Mine
print("recall", model.score(X[400:800] / 16, y[400:800]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "session"])
def test_a_plain_script_and_a_session(way, tmp_path, monkeypatch):
    mark = toys.new_mark(monkeypatch)
    path = tmp_path / "plain.py"  # without a guard for __main__
    path.write_text(SCRIPT)
    command, text = [sys.executable, str(path)], None
    if way == "session":
        # As a notebook: there is no file, and statements come one by one.
        command, text = [sys.executable, "-i", "-q"], textwrap.dedent(SCRIPT)
        text = text.replace("super().__init__()\n        self.b", "super().__init__(); self.b")
        text = text.replace("n_components)\n\n    def", "n_components)\n    def") + "\nexit()\n"
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=tmp_path, timeout=250
    )
    assert "recall 0." in done.stdout, done.stderr
    assert toys.marked(mark) == []


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_script_ends(signum, tmp_path, monkeypatch):
    mark = toys.new_mark(monkeypatch)
    path = tmp_path / "plain.py"
    path.write_text(SCRIPT.replace("max_epochs=1", "max_epochs=10_000"))
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen([sys.executable, str(path)], stderr=output, cwd=tmp_path)
        try:
            wait_for(lambda: len(toys.marked(mark)) == 4)  # itself, the host and two ranks
            time.sleep(1)
            process.send_signal(signum)
            process.wait(20)
        finally:
            process.kill()
    wait_for(lambda: not toys.marked(mark), seconds=10)
    if signum == signal.SIGINT:
        assert "KeyboardInterrupt" in (tmp_path / "output").read_text()


def wait_for(condition, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


TORCHRUN = """
import os, sys
import joblib
import numpy as np
from sklearn.datasets import load_digits
from skdml import DeepMetricEmbedder
from skdml.deep import distributed

X, y = load_digits(return_X_y=True)
model = DeepMetricEmbedder(
    max_epochs=2, module__hidden=(32,), classes_per_batch=5, random_state=0
)
model = distributed.run(model, X[:400] / 16, y[:400])
np.save(f"{sys.argv[1]}/{os.environ['RANK']}.npy", model.transform(X[400:800] / 16))
"""


def run_by_torchrun(script, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, str(script), *map(str, arguments)],
        cwd=script.parent,
        check=True,
        timeout=280,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.slow
def test_torchrun_gives_every_rank_what_fit_gives(digits, tmp_path):
    (tmp_path / "train.py").write_text(TORCHRUN)
    run_by_torchrun(tmp_path / "train.py", tmp_path)
    first, second = (np.load(tmp_path / f"{rank}.npy") for rank in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, quick().fit(*digits[:2]).transform(digits[2]))


@pytest.mark.slow
def test_script_of_the_guide_runs_as_printed(tmp_path):
    page = Path(__file__).parents[2] / "doc" / "guide" / "distributed.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (script,) = (block for block in blocks if block.startswith("# train.py"))
    (tmp_path / "train.py").write_text(script)
    output = run_by_torchrun(tmp_path / "train.py")
    assert float(output.split("recall@1")[1]) > 0.9
    model = joblib.load(tmp_path / "model.joblib")
    assert model.transform(np.zeros((1, 64))).shape == (1, 64)
