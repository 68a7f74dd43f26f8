"""Generators side by side: each is fitted on rows and returns a function that draws new ones.

WGAN-GP and the sliced distance train the networks of `WassersteinGenerator`, on rows scaled in the
same way, with the same optimiser and latent vectors, and end with the same running mean of the
generator's weights. Learning rates of all three were chosen on digits. A plain WGAN-GP has rates of
0.001 and the weights of its last update.
"""

import numpy as np
import torch
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from torch import nn

from benchmarks.generator_plots import BASE, PLAIN
from skdml import WassersteinGenerator
from skdml.generate._columns import learn_columns
from skdml.generate._generator_networks import make_optimizer, mlp_critic, mlp_generator
from skdml.utils._torch import average_weights

N_PROJECTIONS = 128
N_CRITIC_STEPS = 5
# The best of eight pairs of rates, of 0.0005 to 0.008, and of three rates that were tried on
# training digits that were held out.
WGAN_RATES = 4e-3, 1e-3
SLICED_RATE = 4e-3


def transport(X, seed, updates, **params):
    """Fit WassersteinGenerator, and return a function (n_samples, seed) to rows."""
    model = WassersteinGenerator(max_iter=updates, random_state=seed, **params).fit(X)
    return model.sample


def score_critic(n_features):
    """Return the critic of a WGAN-GP for tables: that of the learned cost, with one output."""
    layers = mlp_critic(n_features)
    layers[-1] = nn.Linear(layers[-1].in_features, 1)
    return layers


def gradient_penalty(critic, real, made):
    """Return the mean squared distance of slopes from 1, between real and generated rows."""
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slopes.norm(dim=1) - 1) ** 2).mean()


def train_wgan_gp(
    rows,
    generator,
    critic,
    seed,
    updates,
    *,
    latent_dim=32,
    batch_size=64,
    rates=WGAN_RATES,
    averaged=True,
):
    """Train a generator by WGAN-GP, with a penalty of weight 10 and 5 steps of the critic.

    With `averaged` it ends with the running mean of its weights.
    """
    torch.manual_seed(seed)
    generator, critic = generator(), critic()
    ours, theirs = make_optimizer(generator, rates[0]), make_optimizer(critic, rates[1])
    mean = average_weights(generator)
    for _ in range(updates):
        for _ in range(N_CRITIC_STEPS):
            real = rows[torch.randint(len(rows), (batch_size,))]
            with torch.no_grad():
                made = generator(torch.randn(batch_size, latent_dim))
            loss = critic(made).mean() - critic(real).mean()
            loss = loss + 10 * gradient_penalty(critic, real, made)
            theirs.zero_grad()
            loss.backward()
            theirs.step()
        loss = -critic(generator(torch.randn(batch_size, latent_dim))).mean()
        ours.zero_grad()
        loss.backward()
        ours.step()
        mean.update_parameters(generator)
    if averaged:
        generator.load_state_dict(mean.module.state_dict())
    return generator.eval()


def train_sliced(rows, generator, seed, updates, *, latent_dim=32, batch_size=256, lr=SLICED_RATE):
    """Train a generator by the sliced Wasserstein distance, on batches of four critics' size."""
    torch.manual_seed(seed)
    generator = generator()
    ours = make_optimizer(generator, lr)
    mean = average_weights(generator)
    for _ in range(updates):
        real = rows[torch.randint(len(rows), (batch_size,))]
        made = generator(torch.randn(batch_size, latent_dim))
        directions = nn.functional.normalize(torch.randn(rows.shape[1], N_PROJECTIONS), dim=0)
        sides = [(side @ directions).sort(dim=0).values for side in (real, made)]
        loss = ((sides[0] - sides[1]) ** 2).mean()
        ours.zero_grad()
        loss.backward()
        ours.step()
        mean.update_parameters(generator)
    generator.load_state_dict(mean.module.state_dict())
    return generator.eval()


def drawer(generator, columns, latent_dim=32):
    """Return a function (n_samples, seed) to rows of a trained generator."""

    def draw(n_samples, seed):
        latents = np.random.default_rng(seed).standard_normal((n_samples, latent_dim))
        with torch.no_grad():
            made = generator(torch.from_numpy(latents.astype(np.float32))).numpy()
        return columns.decode(made)

    return draw


def _scaled(X):
    columns = learn_columns(X)
    return columns, torch.from_numpy(columns.encode(X))


def wgan_gp(X, seed, updates, rates=WGAN_RATES, averaged=True):
    columns, rows = _scaled(X)
    n_features = X.shape[1]
    generator = train_wgan_gp(
        rows,
        lambda: mlp_generator(32, n_features),
        lambda: score_critic(n_features),
        seed,
        updates,
        rates=rates,
        averaged=averaged,
    )
    return drawer(generator, columns)


def sliced(X, seed, updates):
    columns, rows = _scaled(X)
    return drawer(train_sliced(rows, lambda: mlp_generator(32, X.shape[1]), seed, updates), columns)


def gaussian_mixture(X, seed, updates):
    """Fit a Gaussian mixture; the number of components is chosen by cross-validation."""
    columns, rows = _scaled(X)
    grid = {"n_components": [1, 5, 10, 20, 40]}
    kind = "full" if X.shape[1] <= 100 else "diag"
    mixture = GaussianMixture(covariance_type=kind, reg_covar=1e-4, random_state=seed)
    model = GridSearchCV(mixture, grid, cv=3).fit(rows.numpy().astype(np.float64)).best_estimator_

    def draw(n_samples, seed):
        model.random_state = seed
        made = model.sample(n_samples)[0]
        return columns.decode(np.random.default_rng(seed).permutation(made))

    return draw


def kernel_density(X, seed, updates):
    """Fit a kernel density; the bandwidth is chosen by cross-validation."""
    columns, rows = _scaled(X)
    grid = {"bandwidth": np.geomspace(0.01, 1, 9)}
    model = GridSearchCV(KernelDensity(), grid, cv=3).fit(rows.numpy().astype(np.float64))
    return lambda n_samples, seed: columns.decode(
        model.best_estimator_.sample(n_samples, random_state=seed)
    )


def of_transport(**params):
    return lambda X, seed, updates: transport(X, seed, updates, **params)


METHODS = {
    "WassersteinGenerator": of_transport(),
    "same, squared cost": of_transport(cost="squared", n_critics=4),
    "same, learned cost": of_transport(cost="learned"),
    BASE: wgan_gp,
    PLAIN: lambda X, seed, updates: wgan_gp(X, seed, updates, (1e-3, 1e-3), averaged=False),
    "sliced Wasserstein": sliced,
    "Gaussian mixture": gaussian_mixture,
    "kernel density": kernel_density,
}
