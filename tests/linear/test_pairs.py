import numpy as np
import pytest

from skdml.utils._differences import PairDifferences

rng = np.random.default_rng(0)
X = rng.standard_normal((30, 5))
MATRIX = np.tril(rng.standard_normal((5, 5)))


def make(n_pairs):
    return rng.integers(0, 30, (n_pairs, 2)), rng.uniform(-1, 1, size=(2, n_pairs))


@pytest.mark.parametrize("tile_size", [2**16, 25])  # all rows in one tile, or five in each
@pytest.mark.parametrize("n_pairs", [8, 400])  # fewer and more pairs than rows
def test_against_a_loop_over_pairs(n_pairs, tile_size, monkeypatch):
    monkeypatch.setattr("skdml.utils._differences._TILE_SIZE", tile_size)
    pairs, weights = make(n_pairs)
    C = np.array([X[i] - X[j] for i, j in pairs])
    with PairDifferences(X, pairs) as differences:
        np.testing.assert_array_equal(differences.to_array(), C)
        expected = sum(w[:, None, None] * np.outer(c, c) for w, c in zip(weights.T, C, strict=True))
        np.testing.assert_allclose(differences.scatter(weights), expected, atol=1e-11)
        np.testing.assert_allclose(differences.scatter(weights[0]), expected[0], atol=1e-11)
        np.testing.assert_allclose(
            differences.squared_norms(MATRIX), [np.sum((MATRIX @ c) ** 2) for c in C], atol=1e-11
        )
        np.testing.assert_allclose(differences.squared_norms(None), (C**2).sum(1), atol=1e-11)
        S = MATRIX + MATRIX.T
        np.testing.assert_allclose(
            differences.quadratic_forms(S), [c @ S @ c for c in C], atol=1e-11
        )


def test_blocks_give_the_same_for_any_n_jobs(monkeypatch):
    pairs, weights = make(1000)
    with PairDifferences(X, pairs) as whole:
        expected = whole.scatter(weights), whole.squared_norms(MATRIX)
    monkeypatch.setattr("skdml.utils._differences._BLOCK_PAIRS", 37)
    monkeypatch.setattr("skdml.utils._differences._CHUNK_SIZE", 30)
    results = []
    for n_jobs in (None, 2):
        with PairDifferences(X, pairs, n_jobs=n_jobs) as blocks:
            assert len(blocks._cuts) == 28
            results.append((blocks.scatter(weights), blocks.squared_norms(MATRIX)))
    for first, second, whole in zip(*results, expected, strict=True):
        assert np.array_equal(first, second)
        np.testing.assert_allclose(first, whole, atol=1e-11)


def test_on_a_cluster_only_small_things_travel(cluster_client, monkeypatch):
    monkeypatch.setattr("skdml.utils._differences._BLOCK_PAIRS", 200)
    pairs, weights = make(1000)
    with (
        PairDifferences(X, pairs) as local,
        PairDifferences(X, pairs, client=cluster_client) as remote,
    ):
        np.testing.assert_allclose(remote.scatter(weights), local.scatter(weights), atol=1e-11)
        np.testing.assert_allclose(
            remote.squared_norms(MATRIX), local.squared_norms(MATRIX), rtol=1e-13
        )
        sent = weights.nbytes + 2 * 25 * 8 + 5 * MATRIX.nbytes + 1000 * 8
        assert remote.bytes_moved <= sent * 1.2
        assert local.bytes_moved == 0
