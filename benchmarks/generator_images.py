"""Networks for small images, and the Frechet distance in the features of a classifier."""

import functools

import numpy as np
import torch
from torch import nn

from benchmarks.data import load_colour_images, load_mnist
from skdml.metrics import frechet_distance

IMAGES = {"mnist": (load_mnist, (1, 28, 28)), "cifar100": (load_colour_images, (3, 32, 32))}
LATENT = 64
# The best of the rates of 0.0005, 0.001 and 0.002 that were tried for WGAN-GP on held-out training
# images: of its generator, and of its critic.
WGAN_RATES = 2e-3, 1e-3
N_JUDGED = 5000


def load_images(data, quick):
    """Return training images, the parameters of networks for them, and a judge of others."""
    load, shape = IMAGES[data]
    X, y = load("train")
    judge = Judge(X, y, load("test")[0], shape, steps=20 if quick else 900)
    return X, image_networks(shape), judge


def image_generator(shape):
    """Return a small generator of images, by transposed convolutions; values in [-1, 1]."""
    n_channels, side, _ = shape
    side //= 4
    return nn.Sequential(
        nn.Linear(LATENT, 64 * side**2),
        nn.BatchNorm1d(64 * side**2),
        nn.ReLU(),
        nn.Unflatten(1, (64, side, side)),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, n_channels, 4, 2, 1),
        nn.Tanh(),
        nn.Flatten(),
    )


def image_critic(shape, n_outputs=64):
    """Return a small critic of images, by convolutions."""
    n_channels, side, _ = shape
    return nn.Sequential(
        nn.Unflatten(1, shape),
        nn.Conv2d(n_channels, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, n_outputs),
    )


def image_networks(shape=(1, 28, 28)):
    """Return the parameters of `WassersteinGenerator` for images."""
    return {
        "module": functools.partial(image_generator, shape),
        "critic_module": functools.partial(image_critic, shape),
        "latent_dim": LATENT,
    }


class Judge:
    """A classifier of images, whose features tell how far generated images are from real ones.

    Parameters
    ----------
    X, y : arrays
        Training images in [0, 1], as rows, and their classes.
    real : array
        Other images, which the generated ones are compared with.
    shape : tuple
        Of an image.
    steps : int
        Batches that the classifier is trained on.
    """

    def __init__(self, X, y, real, shape, steps=900):
        torch.manual_seed(0)
        self.features = nn.Sequential(
            nn.Unflatten(1, shape),
            nn.Conv2d(shape[0], 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (shape[1] // 4) ** 2, 64),
            nn.ReLU(),
        )
        head = nn.Linear(64, int(max(y)) + 1)
        images, labels = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y)
        optimizer = torch.optim.Adam([*self.features.parameters(), *head.parameters()], lr=1e-3)
        for _ in range(steps):
            chosen = torch.randint(len(images), (128,))
            output = head(self.features(2 * images[chosen] - 1))
            loss = nn.functional.cross_entropy(output, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.real = self.describe(real[:N_JUDGED])

    def describe(self, images):
        """Return the features of images in [0, 1]."""
        with torch.no_grad():
            blocks = torch.as_tensor(np.asarray(images), dtype=torch.float32).split(1000)
            return torch.cat([self.features(2 * block - 1) for block in blocks]).numpy()

    def distance(self, images):
        """Return the Frechet distance of images to the real ones."""
        return frechet_distance(self.describe(images), self.real)
