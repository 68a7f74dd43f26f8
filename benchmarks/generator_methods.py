"""Generators of tables side by side: each is fitted on a frame and returns another one.

The frame has a column "target"; ours is fitted with it as y, the others have it as one column more.
All but the copula, CTGAN and TVAE work on the same encoded rows, and WGAN-GP has the networks,
optimiser and latent vectors of `WassersteinGenerator(method="critics")`, with the same running mean
of the generator's weights. Its learning rates were chosen on training digits.
"""

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtr, ndtri
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from torch import nn

from benchmarks.generator_plots import BASE
from benchmarks.harness import CTGAN
from skdml import WassersteinGenerator
from skdml.generate._frames import read_table
from skdml.generate._generator_networks import make_optimizer, mlp_critic, mlp_generator
from skdml.generate._tables import learn_table
from skdml.utils._torch import average_weights

N_CRITIC_STEPS = 5
# The best of eight pairs of rates, of 0.0005 to 0.008, that were tried on training digits that were
# held out.
WGAN_RATES = 4e-3, 1e-3
WGAN_UPDATES = 1500
# Rows by which a mixture or a bandwidth is chosen, and most columns for full covariances.
N_CHOICE, MOST_FULL = 3000, 110
EPOCHS = 300


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
    rows, generator, critic, seed, updates, *, latent_dim=32, batch_size=64, rates=WGAN_RATES
):
    """Train a generator by WGAN-GP, with a penalty of weight 10 and 5 steps of the critic.

    It ends with the running mean of its weights.
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
    generator.load_state_dict(mean.module.state_dict())
    return generator.eval()


# Each takes a frame, the number of rows to draw, a seed, and whether the run is a quick one


def ours(frame, n_samples, seed, quick, **params):
    """Fit WassersteinGenerator with y, and draw rows of the classes of training rows."""
    if quick:
        params["max_iter"] = 5
    model = WassersteinGenerator(random_state=seed, **params)
    model.fit(frame.drop(columns="target"), frame["target"])
    y = np.random.default_rng(seed).choice(frame["target"].to_numpy(), n_samples)
    return model.sample(n_samples, random_state=seed, y=y).assign(target=y)[list(frame.columns)]


def encoded(method):
    """Return a method that works on encoded rows."""

    def draw(frame, n_samples, seed, quick):
        layout, table = read_table(frame)
        encoder = learn_table(layout, table)
        made = method(encoder.encode(table), n_samples, seed, quick)
        return encoder.write(np.asarray(made, dtype=np.float32))

    return draw


@encoded
def wgan_gp(rows, n_samples, seed, quick):
    width = rows.shape[1]
    generator = train_wgan_gp(
        torch.from_numpy(rows),
        lambda: mlp_generator(32, width),
        lambda: score_critic(width),
        seed,
        5 if quick else WGAN_UPDATES,
    )
    latents = np.random.default_rng(seed).standard_normal((n_samples, 32))
    with torch.no_grad():
        return generator(torch.from_numpy(latents.astype(np.float32))).numpy()


@encoded
def gaussian_mixture(rows, n_samples, seed, quick):
    """Fit a Gaussian mixture; the number of components is chosen by cross-validation."""
    rows = rows.astype(np.float64)
    kind = "full" if rows.shape[1] <= MOST_FULL else "diag"
    mixture = GaussianMixture(covariance_type=kind, reg_covar=1e-3, random_state=seed)
    grid = {"n_components": [1, 5] if quick else [1, 5, 10, 20, 40]}
    search = GridSearchCV(mixture, grid, cv=2, refit=False).fit(rows[:N_CHOICE])
    model = mixture.set_params(**search.best_params_).fit(rows)
    return np.random.default_rng(seed).permutation(model.sample(n_samples)[0])


@encoded
def kernel_density(rows, n_samples, seed, quick):
    """Fit a kernel density; the bandwidth is chosen by cross-validation."""
    rows = rows.astype(np.float64)
    grid = {"bandwidth": np.geomspace(0.01, 1, 7)}
    search = GridSearchCV(KernelDensity(), grid, cv=2, refit=False).fit(rows[:N_CHOICE])
    model = KernelDensity(**search.best_params_).fit(rows)
    return model.sample(n_samples, random_state=seed)


def gaussian_copula(frame, n_samples, seed, quick):
    """Draw rows whose columns have the quantiles of the real ones, and their rank correlations.

    Equal values share out the range of their ranks at random; categories are ordered by number.
    """
    rng = np.random.default_rng(seed)
    layout, table = read_table(frame)
    normal, orders = [], []
    for values in table:
        codes = pd.factorize(values, sort=values.dtype.kind == "f", use_na_sentinel=False)[0]
        order = np.lexsort((rng.random(len(codes)), codes))
        ranks = np.empty(len(codes))
        ranks[order] = np.arange(len(codes))
        normal.append(ndtri((ranks + 0.5) / len(codes)))
        orders.append(values[order])
    normal = rng.multivariate_normal(np.zeros(len(table)), np.cov(normal), n_samples)
    places = (ndtr(normal) * len(frame)).astype(int).clip(0, len(frame) - 1)
    columns = [values[places[:, j]] for j, values in enumerate(orders)]
    made = dict(zip(layout.labels, columns, strict=True))
    return pd.DataFrame(made).astype(frame.dtypes.to_dict())


def peer(method):
    """Return a model of the package ctgan."""

    def draw(frame, n_samples, seed, quick):
        layout, table = read_table(frame)
        discrete = [
            label
            for label, kind in zip(layout.labels, layout.kinds, strict=True)
            if kind == "category"
        ]
        columns = {
            f"c{j}": np.array(["" if v is None else str(v) for v in values])
            if values.dtype == object
            else values
            for j, values in enumerate(table)
        }
        inputs = {
            "method": method,
            "names": layout.labels,
            "discrete": discrete,
            "n_samples": n_samples,
            "seed": seed,
            "epochs": 1 if quick else EPOCHS,
            **columns,
        }
        outputs = CTGAN.call("ctgan_peer.py", "draw", inputs).outputs
        made = {label: outputs[f"c{j}"] for j, label in enumerate(layout.labels)}
        for label in discrete:
            made[label] = np.where(made[label] == "", None, made[label].astype(object))
        found = pd.DataFrame(made)
        for label, dtype in frame.dtypes.items():
            if dtype.kind in "iu":
                found[label] = found[label].round()
        found = found.astype(frame.dtypes.to_dict())
        found.attrs["seconds"] = float(outputs["processor_seconds"])
        return found

    return draw


METHODS = {
    "WassersteinGenerator": ours,
    "same, critics": lambda *args: ours(*args, method="critics"),
    "Gaussian mixture": gaussian_mixture,
    "kernel density": kernel_density,
    "Gaussian copula": gaussian_copula,
    BASE: wgan_gp,
    "CTGAN": peer("CTGAN"),
    "TVAE": peer("TVAE"),
}
