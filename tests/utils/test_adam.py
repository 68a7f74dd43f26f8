import numpy as np
import pytest

from skdml.utils._fit import Adam


def test_steps_are_those_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((2, 3)), rng.standard_normal((5, 2, 3))
    ours = Adam([start], eps=1e-8)
    theirs = torch.nn.Parameter(torch.tensor(start))
    optimizer = torch.optim.Adam([theirs], lr=0.1, eps=1e-8)
    before = start.copy()
    for gradient in gradients:
        ours.step([gradient], lr=0.1)
        theirs.grad = torch.tensor(gradient)
        optimizer.step()
    np.testing.assert_allclose(ours.parameters[0], theirs.detach().numpy(), rtol=1e-10)
    assert (start == before).all()
