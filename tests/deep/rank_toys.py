"""Real ranks for tests: ``python rank_toys.py FUNCTION SIZE FOLDER`` forks them and waits.

Each rank calls a function of this module with its `Ranks`; what it returns is stored.
"""

import copy
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import nn

from skdml import DeepMetricEmbedder
from skdml.deep import Distributed, _data
from skdml.deep.distributed import AllReduce, Hybrid, register_sync
from skdml.deep.distributed._comm import GatheredLoss, Ranks
from skdml.deep.distributed._sync import flatten, ring_distance, trained
from skdml.deep.losses import get_loss, loss_names
from skdml.deep.losses._wasserstein import TRANSPORT

# Classes of the union batch, and how many rows each of three ranks has.
LABELS = torch.tensor([0, 0, 1, 1, 2, 0, 0, 1, 2, 2, 3, 2, 3])
COUNTS = (3, 6, 4)
SEED = 7
STEPS = 4


class LocalSGD:
    """A sync mode from outside: replicas are averaged in every third step."""

    def __init__(self, module, criterion, ranks, options):
        self.module, self.ranks, self.n_steps = module, ranks, 0
        ranks.copy_from_first([*module.parameters(), *module.buffers(), *criterion.parameters()])

    def begin(self):
        self.ranks.beat()

    def forward(self, X):
        return self.module(X)

    def finish(self):
        self.n_steps += 1
        if self.n_steps % 3 == 0:
            self.agree()

    def compared(self):
        return list(self.module.parameters())

    def agree(self):
        with torch.no_grad():
            for tensor in [*self.module.parameters(), *self.module.buffers()]:
                if tensor.is_floating_point():
                    tensor.copy_(self.ranks.sum(tensor.clone()) / self.ranks.size)

    def close(self):
        pass


# Parameters of fits, each of which must matter.
PLANS = {
    "hybrid": {"sync": "hybrid", "ring_mix": 0.3},
    "no mixing": {"sync": "hybrid", "ring_mix": 1.0},
    "gradients": {"sync": "hybrid", "ring_mix": 0.3, "ring": "gradients"},
    "local": {"sync": "hybrid", "ring_mix": 0.3, "gather": False},
    "remote": {"sync": "hybrid", "ring_mix": 0.3, "remote_grad": True},
    "allreduce": {},
    "allreduce, constants": {"remote_grad": False},
    "half": {"compression": "fp16"},
    "from outside": {"sync": "local-sgd"},
}


def make_embedder(**params):
    """Return an embedder; parameters of `Distributed` are told by their names."""
    names = set(Distributed().get_params()) - {"n_workers"}
    options = {name: params.pop(name) for name in list(params) if name in names}
    if options:
        params["distributed"] = Distributed(**options)
    return DeepMetricEmbedder(**params)


def run_ranks(function, size, folder):
    """Run a function on ranks and return what each of them returned."""
    command = [sys.executable, __file__, function.__name__, str(size), str(folder)]
    subprocess.run(command, check=True, timeout=280)
    return [torch.load(Path(folder) / f"rank-{rank}", weights_only=False) for rank in range(size)]


def marked(mark):
    """Return the processes that have inherited a mark in their environment, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            is_marked = process.pid != os.getpid() and mark in process.environ().values()
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # gone, or not ours
            continue
    return found


def new_mark(monkeypatch):
    """Put a mark into the environment, by which children can be found."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("SKDML_TEST_MARK", mark)
    return mark


class Net(nn.Module):
    """A backbone and a head, in double precision; without batch norm, whose statistics are of a
    rank's own rows, so that ranks and one process would not compute the same embeddings."""

    def __init__(self, batch_norm=False):
        super().__init__()
        torch.manual_seed(1)
        layers = [nn.Linear(6, 5), nn.BatchNorm1d(5) if batch_norm else nn.Identity(), nn.Tanh()]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(5, 4)
        self.double()

    def forward(self, X):
        return self.head(self.backbone(X))


def make_rows():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(LABELS), 6, generator=generator, dtype=torch.float64)
    return centres[LABELS] + 0.7 * noise


def make_loss(name):
    torch.manual_seed(2)  # proxies
    known = {"num_classes": 4, "embedding_size": 4}
    params = known if name in ("proxy-nca", "proxy-anchor", "soft-triple") else {}
    if name in TRANSPORT:
        params = {"cloud": (2, 2)}
    return get_loss(name, **params)


def settings():
    """All losses by name, and some with random or mined pairs."""
    found = {name: (name, {}) for name in loss_names()}
    found["triplet hard"] = ("triplet", {"triplets": "hard", "reduction": "mean"})
    found["margin distance-weighted"] = ("margin", {"miner": "distance-weighted"})
    found["dro-kl sampled"] = ("dro-kl", {"sample": 5})
    found["dro-topk of 5"] = ("dro-topk", {"k": 5})
    return found


def loss_of(name, params):
    return get_loss(name, **params).double() if params else make_loss(name).double()


def own_rows(rank):
    start = sum(COUNTS[:rank])
    return slice(start, start + COUNTS[rank])


# What ranks do


def gradients(ranks):
    """Values and gradients of the union loss, by all-reduce, for every loss."""
    rows, own, found = make_rows(), own_rows(ranks.rank), {}
    for title, (name, params) in settings().items():
        for remote_grad in (True, False):
            options = Distributed(remote_grad=remote_grad)
            module = Net()
            criterion = GatheredLoss(loss_of(name, params), ranks, options, SEED)
            sync = AllReduce(module, criterion, ranks, options)
            sync.begin()
            value = criterion(sync.forward(rows[own]), LABELS[own])
            value.backward()
            sync.finish()
            sync.close()
            grads = [p.grad for p in (*module.parameters(), *criterion.parameters())]
            found[title, remote_grad] = value.item(), grads
    return found


def hybrid_steps(ranks):
    """States of a net with batch norm after some steps, and what went over the wire."""
    found = {}
    for ring in ("parameters", "gradients"):
        module = Net(batch_norm=True)
        if ranks.rank:
            nn.init.ones_(module.head.weight)  # rank 0 decides
        sync = Hybrid(module, nn.Identity(), ranks, Distributed(ring=ring, ring_mix=0.3))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        ranks.barrier()
        ranks.start_counting()
        for step in range(STEPS):
            optimizer.zero_grad()
            sync.begin()
            toy_loss(sync.forward(toy_rows(ranks.rank, step)), ranks.rank).backward()
            sync.finish()
            optimizer.step()
        ranks.barrier()
        sent = ranks.traffic()
        states = {name: value.clone() for name, value in module.state_dict().items()}
        apart = ring_distance(sync.compared(), ranks)
        sync.agree()
        found[ring] = states, apart, module.state_dict(), sent
        sync.close()
    return found


def toy_rows(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(4 + rank, 6, generator=generator, dtype=torch.float64)


def toy_loss(embeddings, rank):
    """Every rank has another optimum."""
    return (embeddings - rank).square().mean()


def consensus(ranks):
    """Distances in the ring while every rank has data of its own."""
    found = {}
    for ring in ("parameters", "gradients"):
        module = Net()
        sync = Hybrid(module, nn.Identity(), ranks, Distributed(ring=ring))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        found[ring] = []
        for step in range(200):
            optimizer.zero_grad()
            sync.begin()
            toy_loss(sync.forward(toy_rows(ranks.rank, 0)), ranks.rank).backward()
            sync.finish()
            optimizer.step()
            schedule.step()
            if step % 20 == 19:
                found[ring].append(ring_distance(sync.compared(), ranks))
        sync.close()
    return found


def compressed(ranks):
    """Weights after some steps, the bytes of a step, and the weights from a checkpoint on."""
    found = {}
    for compression in (None, "fp16", "powersgd"):
        options, checkpoint, ends = Distributed(compression=compression), None, []
        for first in (0, 15):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
            if checkpoint is not None:
                module.load_state_dict(checkpoint[0])
            sync = AllReduce(module, nn.Identity(), ranks, options)
            if checkpoint is not None:
                sync.restore(checkpoint[1])
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for step in range(first, 20):
                if step == 15:
                    checkpoint = copy.deepcopy((module.state_dict(), sync.state()))
                    ranks.barrier()
                    ranks.start_counting()
                optimizer.zero_grad()
                rows = torch.randn(8, 64, generator=torch.manual_seed(10 * step + ranks.rank))
                sync.begin()
                (sync.forward(rows) - rows).pow(2).mean().backward()
                sync.finish()
                optimizer.step()
            ranks.barrier()
            sent = ranks.traffic()["backbone"] / 5
            ends.append(flatten(trained(module)))
            sync.close()
        found[compression] = ends[0], sent, ends[1]
    return found


def plans(ranks):
    """Weights, losses and distances in the ring of a short fit with each of `PLANS`."""
    _data.MIN_BATCHES = 12
    register_sync("local-sgd", LocalSGD)
    rng = np.random.default_rng(0)
    y = np.arange(90) % 9
    X = rng.standard_normal((90, 5)) + np.eye(9, 5)[y]
    found = {}
    for title, params in PLANS.items():
        model = make_embedder(
            module__hidden=(6,),
            n_components=3,
            classes_per_batch=3,
            samples_per_class=2,
            max_epochs=1,
            random_state=0,
            **params,
        ).fit(X, y)
        weights = torch.cat([p.detach().reshape(-1) for p in model.module_.parameters()])
        found[title] = weights, model.history_["loss"][0], float(model.consensus_[0])
    return found


def everything(ranks):
    functions = (gradients, hybrid_steps, consensus, compressed, plans)
    return {function.__name__: function(ranks) for function in functions}


def main(function, size, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
            store = dist.FileStore(os.path.join(folder, "store"), size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            ranks = Ranks(timeout=60)
            torch.save(globals()[function](ranks), os.path.join(folder, f"rank-{rank}"))
            ranks.barrier()
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
