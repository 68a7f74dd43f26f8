"""The losses against those of pytorch-metric-learning: values and gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
peers = pytest.importorskip("pytorch_metric_learning.losses")

from pytorch_metric_learning import miners, reducers  # noqa: E402
from pytorch_metric_learning.distances import CosineSimilarity  # noqa: E402

from skdml.deep.losses import get_loss, get_miner  # noqa: E402
from skdml.deep.losses._core import pair_masks, unit_rows  # noqa: E402
from skdml.deep.losses._miners import mine_masks  # noqa: E402
from tests.deep.loss_toys import gradient_of, losses_of_pairs, make_batch  # noqa: E402

SEEDS = (0, 1, 2)
EQUAL = np.repeat(np.arange(6), 4)  # every anchor has positives and negatives


class Peer:
    """A loss of the peer with a miner of the peer."""

    def __init__(self, loss, miner=None):
        self.loss, self.miner = loss, miner

    def __call__(self, embeddings, labels):
        indices = self.miner(embeddings, labels) if self.miner else None
        return self.loss(embeddings, labels, indices)


def semi_hard(margin):
    return miners.TripletMarginMiner(margin=margin, type_of_triplets="semihard")


PAIRS_OF_LOSSES = {
    "contrastive": (
        get_loss("contrastive"),
        Peer(peers.ContrastiveLoss()),
    ),
    "contrastive with margins": (
        get_loss("contrastive", positive_margin=0.3, negative_margin=1.2),
        Peer(peers.ContrastiveLoss(pos_margin=0.3, neg_margin=1.2)),
    ),
    "triplet all": (
        get_loss("triplet", triplets="all", margin=0.1),
        Peer(peers.TripletMarginLoss(margin=0.1)),
    ),
    "triplet all, mean": (
        get_loss("triplet", triplets="all", margin=0.1, reduction="mean"),
        Peer(peers.TripletMarginLoss(margin=0.1, reducer=reducers.MeanReducer())),
    ),
    "triplet semi-hard": (
        get_loss("triplet", triplets="semi-hard", margin=0.2),
        Peer(peers.TripletMarginLoss(margin=0.2), semi_hard(0.2)),
    ),
    "triplet hard": (
        get_loss("triplet", triplets="hard", margin=0.2),
        Peer(peers.TripletMarginLoss(margin=0.2), miners.BatchHardMiner()),
    ),
    "triplet cosine": (
        get_loss("triplet", triplets="all", margin=0.2, distance="cosine"),
        Peer(peers.TripletMarginLoss(margin=0.2, distance=CosineSimilarity())),
    ),
    "triplet of mined pairs": (
        get_loss("triplet", triplets="all", margin=0.2, miner="multi-similarity"),
        Peer(peers.TripletMarginLoss(margin=0.2), miners.MultiSimilarityMiner()),
    ),
    "lifted structure": (
        get_loss("lifted-structure"),
        Peer(peers.GeneralizedLiftedStructureLoss(0.5, 0.5, distance=CosineSimilarity())),
    ),
    "lifted structure, margin": (
        get_loss("lifted-structure", margin=-0.7),
        Peer(peers.GeneralizedLiftedStructureLoss(1.2, 0.5, distance=CosineSimilarity())),
    ),
    "lifted structure of pairs": (
        get_loss("lifted-structure-pairs"),
        Peer(peers.LiftedStructureLoss()),
    ),
    "n-pair": (
        get_loss("n-pair-multi-class"),
        Peer(peers.NPairsLoss()),
    ),
    "tuplet": (
        get_loss("n-pair-tuplet", scale=4.0),
        Peer(peers.NTXentLoss(temperature=0.25)),
    ),
    "multi-similarity": (
        get_loss("multi-similarity"),
        Peer(peers.MultiSimilarityLoss()),
    ),
    "multi-similarity, mined": (
        get_loss("multi-similarity", miner="multi-similarity"),
        Peer(peers.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
    ),
    "multi-similarity, mined semi-hard": (
        get_loss("multi-similarity", miner="semi-hard"),
        Peer(peers.MultiSimilarityLoss(), semi_hard(0.2)),
    ),
    "multi-similarity, peer's miner": (
        get_loss("multi-similarity", miner=miners.MultiSimilarityMiner(epsilon=0.3)),
        Peer(peers.MultiSimilarityLoss(), miners.MultiSimilarityMiner(epsilon=0.3)),
    ),
    "contrastive, mined hard": (
        get_loss("contrastive", miner="hard"),
        Peer(peers.ContrastiveLoss(), miners.BatchHardMiner()),
    ),
}


@pytest.mark.parametrize("name", PAIRS_OF_LOSSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_loss_and_gradient_are_those_of_the_peer(name, seed):
    ours, theirs = PAIRS_OF_LOSSES[name]
    embeddings, labels = make_batch(labels=EQUAL, features=8, seed=seed)
    value = theirs(embeddings, labels)
    assert value.item() > 0
    assert ours(embeddings, labels).item() == pytest.approx(value.item(), rel=1e-9)
    expected = gradient_of(theirs, embeddings, labels)
    gradient = gradient_of(ours, embeddings, labels)
    assert torch.allclose(gradient, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_margin_losses_of_pairs_are_those_of_the_peer(seed):
    """The peer sums over triplets, where a positive pair is met once for each negative."""
    embeddings, labels = make_batch(labels=EQUAL, features=8, seed=seed)
    positive, negative = losses_of_pairs(embeddings, labels)
    n_positive, n_negative = 3, 20
    total = n_negative * sum(positive.values()) + n_positive * sum(negative.values())
    active = n_negative * sum(v > 0 for v in positive.values())
    active += n_positive * sum(v > 0 for v in negative.values())
    theirs = peers.MarginLoss(margin=0.2, beta=0.5, distance=CosineSimilarity())
    assert theirs(embeddings, labels).item() == pytest.approx(total / active)
    # Weighed by sign as there, the means over pairs are the same number.
    means = get_loss("margin")(embeddings, labels) * len(labels) * (len(labels) - 1)
    assert means.item() == pytest.approx(sum(positive.values()) + sum(negative.values()))


@pytest.mark.parametrize("name", ["hard", "semi-hard", "multi-similarity"])
@pytest.mark.parametrize("seed", SEEDS)
def test_masks_of_miners_are_the_pairs_of_the_peers(name, seed):
    # The peer's hard miner leaves out anchors without a positive; here they keep their negative.
    singles = [] if name == "hard" else [7, 8]
    embeddings, labels = make_batch(labels=[*EQUAL, *singles], features=8, seed=seed)
    embeddings = embeddings.detach()
    units, masks = unit_rows(embeddings), pair_masks(labels)
    ours = mine_masks(name, units @ units.T, masks, embeddings, labels)
    theirs = mine_masks(get_miner(name), units @ units.T, masks, embeddings, labels)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.sum() > 0
        assert torch.equal(mine, other)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("bins", [20, 100])
@pytest.mark.parametrize("seed", SEEDS)
def test_histogram_is_that_of_the_peer(seed, bins):
    embeddings, labels = make_batch(labels=EQUAL, features=8, seed=seed)
    ours, theirs = get_loss("histogram", bins=bins), peers.HistogramLoss(n_bins=bins)
    value = theirs(embeddings, labels).item()
    # The peer finds the bins in single precision.
    assert ours(embeddings, labels).item() == pytest.approx(value, rel=1e-5)
    expected = gradient_of(theirs, embeddings, labels)
    assert torch.allclose(gradient_of(ours, embeddings, labels), expected, atol=1e-6)


def test_angular_loss_of_the_peer_comes_by_name():
    embeddings, labels = make_batch(labels=EQUAL, features=8)
    loss = get_loss("angular", alpha=30)(embeddings, labels)
    assert loss.item() == peers.AngularLoss(alpha=30)(embeddings, labels).item()
    loss.backward()
    assert embeddings.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["proxy-nca", "proxy-anchor", "soft-triple"])
def test_proxies_are_parameters(name):
    embeddings, labels = make_batch(labels=EQUAL, features=8)
    loss = get_loss(name, num_classes=6, embedding_size=8)
    (proxies,) = loss.parameters()
    loss(embeddings.float(), labels).backward()
    assert proxies.grad.abs().sum() > 0
    assert embeddings.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["hard", "semi-hard", "multi-similarity", "distance-weighted"])
def test_losses_of_the_peer_take_miners_by_name(name):
    embeddings, labels = make_batch(labels=EQUAL, features=8)
    torch.manual_seed(0)
    ours = get_loss(peers.ContrastiveLoss(), miner=name)(embeddings, labels)
    torch.manual_seed(0)
    theirs = peers.ContrastiveLoss()(embeddings, labels, get_miner(name)(embeddings, labels))
    assert ours.item() == theirs.item()
    assert get_loss("angular", miner=name)(embeddings, labels).item() > 0


def test_distance_weighted_draws_are_spread_over_distances():
    """Uniform draws in 16 dimensions crowd near the distance of sqrt(2); weighted ones do not."""
    labels = torch.arange(100).repeat_interleave(2)
    embeddings = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)).double()
    units, (positive, negative) = unit_rows(embeddings), pair_masks(labels)
    S = units @ units.T
    torch.manual_seed(0)
    kept, drawn = mine_masks("distance-weighted", S, (positive, negative), embeddings, labels)
    assert torch.equal(kept, positive)
    assert torch.equal(drawn.sum(1), positive.sum(1))
    assert not (drawn & ~negative).any()
    distances = (2 - 2 * S).clamp_min(0).sqrt()
    assert distances[drawn].mean() < distances[negative].mean() - 0.2
    assert distances[drawn].max() < 1.4 + 1e-6
    # The peer's draws have the same distribution.
    theirs = get_miner("distance-weighted")
    other = torch.cat([distances[a, n] for a, _, n in [theirs(embeddings, labels)]])
    assert distances[drawn].mean().item() == pytest.approx(other.mean().item(), abs=0.1)
