"""Losses by name: what is found, what is refused, and what the errors say."""

import inspect
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from skdml.deep import losses  # noqa: E402
from skdml.deep.losses import (  # noqa: E402
    get_loss,
    loss_names,
    loss_parameters,
    miner_names,
    register_loss,
)
from skdml.deep.losses._core import LOSSES, PEERS  # noqa: E402
from skdml.deep.losses._wasserstein import TRANSPORT  # noqa: E402
from tests.deep.loss_toys import make_batch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")


FUNCTIONS = [name for name in LOSSES if name not in TRANSPORT]


def test_every_name_is_a_public_class_or_of_the_peer():
    assert set(loss_names()) == set(LOSSES) | set(PEERS)
    for name in LOSSES:
        assert type(get_loss(name)) in vars(losses).values()


def test_a_loss_from_outside_is_registered_by_its_class(monkeypatch):
    monkeypatch.setattr("skdml.deep.losses._core.LOSSES", dict(LOSSES))

    @register_loss("cosine-gap")
    class CosineGap(losses.SimilarityLoss):
        """The mean similarity of negative pairs, less that of positive pairs."""

        def __init__(self, scale=1.0, miner=None):
            super().__init__(miner)
            self.scale = scale

        def term(self, similarities, positive, negative, labels):
            shares = [mask.to(similarities) / mask.sum() for mask in (negative, positive)]
            weights = self.scale * (shares[0] - shares[1])
            return (weights * similarities).sum(), weights

    embeddings, labels = make_batch()
    loss = get_loss("cosine-gap", scale=2.0, miner="hard")
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), embeddings)
    assert repr(loss) == "CosineGap(scale=2.0, miner='hard')"
    with pytest.raises(TypeError, match="'cosine-gap' has no parameter 'margin'; it has: scale"):
        get_loss("cosine-gap", margin=1.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_losses_by_name_are_modules_without_parameters(name):
    loss = get_loss(name)
    assert isinstance(loss, torch.nn.Module)
    assert list(loss.parameters()) == []


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("multi-similarty", "multi-similarity"),
        ("multi_similarity", "multi-similarity"),
        ("Triplet", "triplet"),
        ("dro-top-k", "dro-topk"),
        ("dro_kl_g", "dro-kl-g"),
        ("n-pair", "n-pair-tuplet"),
        ("lifted", "lifted-structure"),
        ("proxynca", "proxy-nca"),
    ],
)
def test_a_wrong_name_is_told_the_near_ones(wrong, near):
    with pytest.raises(ValueError, match=f"unknown loss {wrong!r}") as caught:
        get_loss(wrong)
    hint = str(caught.value).partition("The losses are:")
    assert near in hint[0]
    assert all(name in hint[2] for name in loss_names())


def test_a_name_like_no_other_is_told_all():
    with pytest.raises(ValueError, match=r"unknown loss 'xyz'\. The losses are: angular, "):
        get_loss("xyz")


@pytest.mark.parametrize("name", loss_names())
def test_an_unknown_parameter_is_named(name):
    with pytest.raises(TypeError, match=f"the loss {name!r} has no parameter 'marge'"):
        get_loss(name, marge=1.0)


def test_the_error_of_an_unknown_parameter_lists_the_known():
    with pytest.raises(TypeError, match="it has: k, pair_loss, margin, threshold"):
        get_loss("dro-topk", gamma=1.0)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("triplet", {"triplets": "semihard"}, "triplets must be one of 'semi-hard', 'all'"),
        ("triplet", {"distance": "manhattan"}, "distance must be one of"),
        ("triplet", {"reduction": "sum"}, "reduction must be one of 'active', 'mean'"),
        ("contrastive", {"reduction": "sum"}, "reduction must be one of 'mean'"),
        ("dro-kl", {"pair_loss": "hinge"}, "pair_loss must be one of 'margin', 'binomial'"),
        ("dro-kl", {"gamma": 0}, "gamma must be a number above 0, got 0"),
        ("dro-kl-g", {"gamma": (1, -1)}, "gamma must be a number above 0, got -1"),
        ("dro-kl-g", {"gamma": (1, 1, 1)}, "gamma must be one number or two"),
        ("dro-kl", {"gamma": (1, 1)}, "gamma must be a number above 0"),
        ("dro-kl", {"sample": 0}, "sample must be a whole number of at least 1"),
        ("dro-topk", {"k": 0}, "k must be a whole number of at least 1, got 0"),
        ("dro-topk", {"k": 1.5}, "k must be a whole number"),
        ("dro-variance", {"radius": -1}, "radius must be a number above 0"),
        ("multi-similarity", {"negative_scale": -50}, "negative_scale must be a number above 0"),
        ("spectral", {"ridge": -1e-3}, "ridge must be a number of at least 0"),
        ("class-anchor", {"anchors": "one"}, "anchors must be one of 'random', 'all'"),
        ("margin", {"miner": "semihard"}, "unknown miner 'semihard'. Did you mean 'semi-hard'?"),
    ],
)
def test_wrong_values_are_refused_before_training(name, params, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        get_loss(name, **params)


def test_a_loss_without_pairs_to_mine_takes_no_miner():
    with pytest.raises(TypeError, match="the loss 'spectral' takes no miner, got 'hard'"):
        get_loss("spectral", miner="hard")


def test_things_that_are_no_loss_or_miner_are_refused():
    with pytest.raises(TypeError, match="a loss is a name or a callable, got 3"):
        get_loss(3)
    with pytest.raises(TypeError, match="a miner is a name, a callable or None, got 3"):
        get_loss("triplet", miner=3)


def test_proxies_need_to_know_their_number():
    with pytest.raises(TypeError, match="'proxy-nca' needs num_classes and embedding_size"):
        get_loss("proxy-nca")
    empty = inspect.Parameter.empty
    assert loss_parameters("soft-triple")["num_classes"] is empty
    assert loss_parameters("soft-triple")["centers_per_class"] == 10


def test_the_miner_of_the_triplet_loss_may_be_one_of_triplets():
    embeddings, labels = make_batch()
    for name in ("all", "hard", "semi-hard"):
        mined = get_loss("triplet", miner=name)(embeddings, labels)
        expected = get_loss("triplet", triplets=name)(embeddings, labels)
        assert mined.item() == pytest.approx(expected.item(), rel=1e-12)


def test_callables_are_passed_through():
    def loss(embeddings, labels, indices=None):
        return embeddings.sum() * 0 if indices is None else embeddings[indices[0]].sum()

    assert get_loss(loss) is loss
    with pytest.raises(TypeError, match="parameters are for losses by name; got margin"):
        get_loss(loss, margin=1.0)
    made = get_loss(torch.nn.TripletMarginLoss, margin=0.5)
    assert made.margin == 0.5
    embeddings, labels = make_batch()
    mined = get_loss(loss, miner=lambda x, y: (torch.tensor([1]),) * 3)
    assert mined(embeddings, labels).item() == embeddings[1].sum().item()


@pytest.mark.parametrize("name", miner_names())
def test_miners_choose_among_the_pairs(name):
    embeddings, labels = make_batch()
    mined = get_loss("contrastive", miner=name)(embeddings, labels)
    assert torch.isfinite(mined)
    if name == "all":
        expected = get_loss("contrastive")(embeddings, labels)
        assert mined.item() == pytest.approx(expected.item(), rel=1e-12)


def test_making_a_loss_leaves_the_generator_alone():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    get_loss("class-anchor")
    get_loss("dro-kl", sample=5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_wrong_shapes_are_refused():
    embeddings, labels = make_batch()
    for name in FUNCTIONS:
        with pytest.raises(ValueError, match="labels must have one entry for each of the 9"):
            get_loss(name)(embeddings, labels[:-1])
        with pytest.raises(ValueError, match=r"embeddings must have two dimensions.*got \(9,\)"):
            get_loss(name)(embeddings[:, 0], labels)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, skdml; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
