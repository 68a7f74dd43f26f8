"""Gradients against finite differences, and batches at the edge of what a loss is made for."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from skdml.deep import losses  # noqa: E402
from skdml.deep.losses import get_loss  # noqa: E402
from skdml.deep.losses._core import LOSSES  # noqa: E402
from skdml.deep.losses._wasserstein import TRANSPORT  # noqa: E402
from tests.deep.loss_toys import gradient_of, make_batch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

FUNCTIONS = [name for name in LOSSES if name not in TRANSPORT]
DRO = [name for name in FUNCTIONS if name.startswith("dro")]
CASES = [
    *[(name, {}) for name in FUNCTIONS],
    *[(name, {"pair_loss": "binomial"}) for name in DRO],
    ("contrastive", {"reduction": "mean", "negative_margin": 1.5}),
    ("margin", {"reduction": "active"}),
    ("margin", {"reduction": "balanced"}),
    ("binomial", {"reduction": "balanced"}),
    *[("triplet", {"triplets": triplets}) for triplets in ("all", "hard")],
    ("triplet", {"triplets": "all", "distance": "cosine", "reduction": "mean"}),
    ("triplet", {"triplets": "semi-hard", "distance": "cosine", "margin": 0.5}),
    ("lifted-structure", {"margin": -1.0}),
    *[(f"n-pair-{form}", {"normalize": False}) for form in ("tuplet", "multi-class")],
    ("n-pair-one-vs-one", {"scale": 3.0}),
    ("spectral", {"normalize": False, "ridge": 0.1}),
    ("class-anchor", {"anchors": "all"}),
    ("class-anchor", {"anchors": "all", "negatives": "hardest"}),
    ("histogram", {"bins": 7}),
    ("dro-topk", {"k": 5}),
    ("dro-topk-pn", {"k": 8}),
    ("dro-kl", {"gamma": 0.01}),
    ("dro-kl", {"sample": 6}),
    ("dro-kl-g", {"gamma": (0.5, 0.02), "null_loss": 0.1}),
    ("dro-kl-ball", {"radius": 0.5}),
    ("dro-variance", {"radius": 0.1}),
    ("dro-variance", {"radius": 10.0, "margin": 1.0}),
    ("multi-similarity", {"miner": "multi-similarity"}),
    ("contrastive", {"miner": "semi-hard"}),
    ("dro-topk", {"miner": "hard"}),
    ("dro-kl-g", {"miner": "distance-weighted"}),
]


def name_of(case):
    return case if isinstance(case, str) else "-".join(f"{k}={v}" for k, v in case.items())


@pytest.mark.parametrize(("name", "params"), CASES, ids=name_of)
def test_gradient_is_that_of_finite_differences(name, params):
    loss = get_loss(name, **params)
    embeddings, labels = make_batch(labels=(0, 0, 0, 1, 1, 2, 2, 3), features=4)

    def repeatable(x):
        torch.manual_seed(0)  # losses that draw, draw the same
        return loss(x, labels)

    # Steps that stay on one side of a hinge, and a loss that is one of these batches.
    assert repeatable(embeddings).item() > 0
    assert torch.autograd.gradcheck(repeatable, (embeddings,), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_is_scaled_by_what_comes_after(name):
    embeddings, labels = make_batch()

    def loss(x, y):
        torch.manual_seed(0)
        return get_loss(name)(x, y)

    single = gradient_of(loss, embeddings, labels)
    triple = gradient_of(lambda x, y: 3 * loss(x, y), embeddings, labels)
    assert torch.allclose(triple, 3 * single)


EDGES = {
    "no positives": [0, 1, 2, 3],
    "no negatives": [0, 0, 0],
    "one row": [0],
    "two of a class": [0, 0],
    "two classes": [0, 1],
    "singles beside a class": [0, 0, 0, 1, 2],
}
NEEDS_BOTH = {
    "triplet",
    "lifted-structure",
    "lifted-structure-pairs",
    "n-pair-tuplet",
    "n-pair-multi-class",
    "n-pair-one-vs-one",
    "facility-location",
    "histogram",
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_batches_have_a_finite_loss_and_gradient(name, edge):
    takes_miner = "miner" in losses.loss_parameters(name)
    for miner in [None, *losses.miner_names()] if takes_miner else [None]:
        dtype = torch.float64 if miner == "all" else torch.float32
        embeddings, labels = make_batch(labels=EDGES[edge])
        embeddings = embeddings.detach().to(dtype).requires_grad_()
        loss = get_loss(name, miner=miner)(embeddings, labels)
        assert loss.shape == ()
        assert loss.dtype == dtype
        (gradient,) = torch.autograd.grad(loss, embeddings)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()
        one_kind = edge != "singles beside a class"
        if name in NEEDS_BOTH and one_kind:
            assert loss == 0
            assert (gradient == 0).all()


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - NEEDS_BOTH - {"spectral", "class-anchor"}))
def test_one_row_has_no_loss(name):
    embeddings, labels = make_batch(labels=[0])
    loss = get_loss(name)(embeddings, labels)
    assert loss == 0
    assert (torch.autograd.grad(loss, embeddings)[0] == 0).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal_and_zero_embeddings_have_finite_gradients(name):
    embeddings = torch.ones(6, 3)
    embeddings[4:] = 0
    embeddings.requires_grad_()
    loss = get_loss(name)(embeddings, torch.tensor([0, 0, 1, 1, 2, 2]))
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert torch.isfinite(loss)
    assert gradient.abs().max() < 1e4


@pytest.mark.parametrize("pair_loss", ["margin", "binomial"])
@pytest.mark.parametrize("name", ["dro-kl", "dro-kl-g"])
@pytest.mark.parametrize("gamma", [1e-3, 1e-6])
def test_small_gamma_does_not_overflow(name, pair_loss, gamma):
    embeddings, labels = make_batch()
    embeddings = embeddings.detach().float().requires_grad_()
    # A margin that makes l / gamma far larger than what exp can take.
    loss = get_loss(name, gamma=gamma, pair_loss=pair_loss, margin=2.0)(embeddings, labels)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0
    if name == "dro-kl":
        largest = get_loss("dro-max", pair_loss=pair_loss, margin=2.0)(embeddings, labels)
        assert loss.item() == pytest.approx(largest.item(), abs=40 * gamma)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_precision_is_computed_in_single(name):
    embeddings, labels = make_batch()
    half = embeddings.detach().half().requires_grad_()
    torch.manual_seed(0)
    loss = get_loss(name)(half, labels)
    torch.manual_seed(0)
    single = get_loss(name)(half.detach().float(), labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(single.item())
    loss.backward()
    assert half.grad.dtype == torch.float16


@pytest.mark.parametrize("name", FUNCTIONS)
def test_labels_may_be_any_whole_numbers_in_any_order(name):
    embeddings, labels = make_batch()
    places = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    if name in ("n-pair-multi-class", "n-pair-one-vs-one"):
        places = torch.arange(len(labels))  # the first two of a class are its pair
    params = {"anchors": "all"} if name == "class-anchor" else {}
    loss = get_loss(name, **params)
    one = gradient_of(loss, embeddings, labels)
    other = gradient_of(loss, embeddings[places], 1000 - 7 * labels[places])
    assert torch.allclose(one[places], other, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_losses_survive_pickling(name):
    embeddings, labels = make_batch()
    loss = get_loss(name)
    copy = pickle.loads(pickle.dumps(loss))
    values = []
    for function in (loss, copy):
        torch.manual_seed(0)
        values.append(function(embeddings, labels).item())
    assert values[0] == values[1]


@pytest.mark.parametrize(
    "name", ["contrastive", "triplet", "multi-similarity", "dro-topk", "spectral"]
)
def test_a_step_downhill_lowers_the_loss(name):
    embeddings, labels = make_batch(seed=4)
    loss = get_loss(name)
    gradient = gradient_of(loss, embeddings, labels)
    before, after = loss(embeddings, labels), loss(embeddings - 1e-3 * gradient, labels)
    assert after < before
