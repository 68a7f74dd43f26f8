"""Sinkhorn divergence: against POT's exact solver, by finite differences, and its properties."""

import numpy as np
import pytest

ot = pytest.importorskip("ot")
torch = pytest.importorskip("torch")

from skdml.transport import _sinkhorn as module  # noqa: E402
from skdml.transport import sinkhorn_divergence  # noqa: E402


def make_clouds(seed=0, n_clouds=6, n_points=(7, 5), n_features=3):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n_clouds, n, n_features)) for n in n_points]


def exact(A, B, p, a=None, b=None):
    names = {1: "euclidean", 2: "sqeuclidean"}
    values = []
    for i, (x, y) in enumerate(zip(A, B, strict=True)):
        sides = [] if a is None else a[i], [] if b is None else b[i]
        values.append(ot.emd2(*sides, ot.dist(x, y, metric=names[p])))
    return np.array(values)


@pytest.mark.parametrize("p", [1, 2])
def test_exact_is_the_value_of_the_linear_program(p):
    A, B = make_clouds()
    np.testing.assert_allclose(sinkhorn_divergence(A, B, p=p, solver="exact"), exact(A, B, p))


@pytest.mark.parametrize("p", [1, 2])
def test_tends_to_the_exact_value_as_the_entropy_falls(p):
    A, B = make_clouds(1)
    wanted = exact(A, B, p)
    errors = [
        np.abs(sinkhorn_divergence(A, B, p=p, reg=reg) - wanted).max() for reg in (1, 0.1, 0.005)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05 * wanted.max()


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reg", [0.02, 0.05, 1.0])
def test_is_symmetric_and_at_least_zero(p, reg):
    A, B = make_clouds(2)
    there, back = (sinkhorn_divergence(*pair, p=p, reg=reg) for pair in ((A, B), (B, A)))
    np.testing.assert_allclose(there, back, rtol=1e-5)
    assert (there > 0).all()
    near = A + 1e-3
    assert (sinkhorn_divergence(A, near, p=p, reg=reg) > -1e-6).all()


@pytest.mark.parametrize("solver", ["sinkhorn", "exact"])
def test_equal_clouds_have_none_whatever_the_order_of_points(solver):
    A, _ = make_clouds(3)
    shuffled = A[:, ::-1].copy()
    np.testing.assert_allclose(sinkhorn_divergence(A, shuffled, solver=solver), 0, atol=1e-9)
    same = np.zeros((2, 3, 2))
    np.testing.assert_allclose(sinkhorn_divergence(same, same, solver=solver), 0, atol=1e-9)


def test_one_point_is_the_plain_cost():
    A, B = np.array([[[0.0, 0.0]]]), np.array([[[3.0, 4.0]]])
    for p, cost in ((1, 5), (2, 25)):
        np.testing.assert_allclose(sinkhorn_divergence(A, B, p=p), [cost], rtol=1e-6)


def test_weights_are_those_of_the_program():
    A, B = make_clouds(4)
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(7), 6), rng.dirichlet(np.ones(5), 6)
    np.testing.assert_allclose(
        sinkhorn_divergence(A, B, a=a, b=b, solver="exact"), exact(A, B, 2, a, b)
    )
    near = sinkhorn_divergence(A, B, a=a, b=b, reg=0.005)
    np.testing.assert_allclose(near, exact(A, B, 2, a, b), rtol=0.06)


def test_weights_may_be_of_the_other_kind():
    A, B = make_clouds(4)
    a = np.random.default_rng(0).dirichlet(np.ones(7), 6)
    expected = sinkhorn_divergence(A, B, a=a)
    assert isinstance(sinkhorn_divergence(A, B, a=torch.from_numpy(a)), np.ndarray)
    np.testing.assert_allclose(sinkhorn_divergence(A, B, a=torch.from_numpy(a)), expected)
    tensors = sinkhorn_divergence(torch.from_numpy(A), torch.from_numpy(B), a=a)
    np.testing.assert_allclose(tensors.numpy(), expected)


def test_eta_may_be_of_any_precision():
    A, B = make_clouds(5)
    with np.errstate(over="raise"):
        value = sinkhorn_divergence(A, B, eta=np.float32(0.5))
    np.testing.assert_array_equal(value, sinkhorn_divergence(A, B, eta=0.5))


def test_a_single_pair_is_a_scalar_and_tensors_are_tensors():
    A, B = make_clouds(5)
    every = sinkhorn_divergence(A, B, eta=0.1)
    assert float(sinkhorn_divergence(A[0], B[0], eta=0.1)) == pytest.approx(every[0], rel=1e-6)
    tensors = sinkhorn_divergence(torch.from_numpy(A), torch.from_numpy(B), eta=0.1)
    assert isinstance(tensors, torch.Tensor)
    np.testing.assert_allclose(tensors.numpy(), every)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("solver", ["sinkhorn", "exact"])
def test_gradient_by_finite_differences(p, solver):
    A, B = (torch.from_numpy(x) for x in make_clouds(6, n_clouds=2, n_points=(4, 3)))

    def total(A):
        return sinkhorn_divergence(A, B, p=p, eta=0.3, solver=solver).sum()

    A.requires_grad_()
    (gradient,) = torch.autograd.grad(total(A), A)
    for place in np.ndindex(*A.shape):
        step = torch.zeros_like(A)
        step[place] = 1e-5
        slope = (total(A + step) - total(A - step)).item() / 2e-5
        assert gradient[place].item() == pytest.approx(slope, abs=2e-5)


def test_the_gradient_of_the_last_step_is_wrong_for_the_value():
    """POT's grad="last_step" differentiates one iteration: not the slope of the value."""
    A, B = (torch.from_numpy(x) for x in make_clouds(7, n_clouds=1, n_points=(4, 4)))
    A.requires_grad_()
    from ot.batch import solve_batch

    def value(A, grad):
        return solve_batch(module.cost_matrices(A, B, 2), 0.3, grad=grad, max_iter=2000, tol=1e-10)

    (gradient,) = torch.autograd.grad(value(A, "last_step").value.sum(), A)
    step = torch.zeros_like(A)
    step[0, 0, 0] = 1e-5
    values = [value((A + sign * step).detach(), "detach").value.item() for sign in (1, -1)]
    slope = (values[0] - values[1]) / 2e-5
    assert abs(gradient[0, 0, 0].item() - slope) > 0.01 * abs(slope)


def test_logarithms_take_over_where_the_kernel_would_underflow(monkeypatch):
    A, B = make_clouds(8)
    plain = sinkhorn_divergence(A, B, eta=0.5)
    monkeypatch.setattr(module, "_LARGEST_EXPONENT", 0.0)
    np.testing.assert_allclose(sinkhorn_divergence(A, B, eta=0.5), plain, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": 3}, "p must be 1"),
        ({"p": np.array([1, 2])}, "p must be 1"),
        ({"solver": np.array(["exact", "exact"])}, "solver must be"),
        ({"b": b"bytes"}, "b: could not convert string"),
        ({"reg": 0.0}, "reg must be a number above 0"),
        ({"reg": "small"}, "reg must be a number above 0"),
        ({"eta": 0}, "eta must be a number above 0"),
        ({"eta": 1e300}, "eta must be a number above 0 and below 1e.154"),
        ({"A": np.full((6, 7, 3), np.nan)}, "A must have no NaN"),
        ({"A": "abc"}, "A: could not convert string"),
        ({"A": [[1.0], [1.0, 2.0]]}, "A: setting an array element"),
        ({"a": "abc"}, "a: could not convert string"),
        ({"a": np.full((6, 7), np.nan)}, "a must sum to 1 in each cloud; 6 of 6"),
        ({"A": torch.zeros(6, 7, 3)}, "of the same kind"),
        ({"solver": "emd"}, "solver must be"),
        ({"a": np.full((6, 7), 0.5)}, "a must sum to 1 in each cloud; 6 of 6"),
        ({"b": np.full((6, 7), 0.5)}, "b must have one weight for each point"),
        ({"A": np.zeros((6, 0, 3))}, "A must have shape"),
        ({"B": np.zeros((5, 5, 3))}, "as many clouds and features"),
    ],
)
def test_wrong_input_is_named(change, message):
    A, B = make_clouds()
    arguments = {"A": A, "B": B, **change}
    with pytest.raises(ValueError, match=message):
        sinkhorn_divergence(arguments.pop("A"), arguments.pop("B"), **arguments)


def test_whole_numbers_and_lists_are_clouds_too():
    A = np.array([[0, 0], [4, 0], [0, 7]])
    B = A + np.array([0, 2])
    wanted = sinkhorn_divergence(A.astype(float), B.astype(float))
    assert float(wanted) == pytest.approx(4, rel=1e-3)
    assert float(sinkhorn_divergence(A, B)) == wanted
    assert float(sinkhorn_divergence(A.tolist(), B.tolist())) == wanted
    tensors = torch.from_numpy(A), torch.from_numpy(B)
    assert sinkhorn_divergence(*tensors).item() == pytest.approx(float(wanted))
    a = [0.5, 0.25, 0.25]
    assert float(sinkhorn_divergence(A, A, a=a, b=a)) == pytest.approx(0, abs=1e-9)


def test_negative_weights_are_named():
    A, B = make_clouds()
    a = np.full((6, 7), 1 / 7)
    a[0, :2] = -0.1, 0.1 + 2 / 7
    with pytest.raises(ValueError, match="a must have no negative weight"):
        sinkhorn_divergence(A, B, a=a)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_clouds_of_two_precisions_have_values_of_the_wider_one(kind):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 3, 4, 2))
    values = sinkhorn_divergence(kind(1e30 * A), kind(B.astype(np.float32)))
    assert values.dtype == kind(A).dtype
    assert np.isfinite(np.asarray(values)).all()
