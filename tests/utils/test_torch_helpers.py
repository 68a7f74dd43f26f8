"""Averaged weights, and the last finite weights of a training."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skdml.utils._torch import LastGood, NotFinite, average_weights  # noqa: E402


def test_the_average_is_that_of_a_growing_decay_and_counts_are_copied():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = average_weights(module, decay=0.9)
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    for step in range(1, 150):
        with torch.no_grad():
            for value in module.parameters():
                value.add_(torch.randn_like(value))
        module(torch.randn(4, 3))
        average.update_parameters(module)
        weight = max(0.1, 9 / (9 + step))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                expected[name] += weight * (value - expected[name])
            else:
                expected[name] = value.clone()
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert average.module[1].num_batches_tracked == 149


def test_the_last_finite_weights_are_restored_with_a_warning():
    module = nn.Linear(2, 1)
    good = LastGood(module)
    error = NotFinite("the loss was not finite in epoch 1, batch 1")
    with pytest.raises(ValueError, match="batch 1, before one epoch was done: is X scaled"):
        good.restore(error, 0.1)
    assert good.save()
    kept = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.fill_(float("nan"))
    assert not good.save()
    with pytest.warns(
        ConvergenceWarning, match=r"weights of epoch 1 are kept.*smaller lr than 0.1"
    ):
        good.restore(error, 0.1)
    torch.testing.assert_close(module.weight.detach(), kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert good.save()
