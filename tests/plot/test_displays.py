import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

from skdml import GMMLTransformer, LocalGMMLRanker
from skdml.datasets import make_ranking
from skdml.metrics import mean_ndcg
from skdml.plot import (
    AffinityDisplay,
    EmbeddingDisplay,
    GeneratedSamplesDisplay,
    GeneratorTrainingDisplay,
    MetricMatrixDisplay,
    RankingDisplay,
)


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


@pytest.fixture(scope="module")
def model(wine):
    return GMMLTransformer(random_state=0).fit(*wine)


def test_embedding_has_a_panel_for_before_and_after(model, wine):
    X, y = wine
    display = EmbeddingDisplay.from_estimator(model, X, y)
    assert [axes.get_title() for axes in display.axes_] == ["input", "GMMLTransformer"]
    for axes in display.axes_:
        assert sum(len(c.get_offsets()) for c in axes.collections) == len(X)
        assert len(axes.collections) == 3
    assert [t.get_text() for t in display.axes_[1].get_legend().get_texts()] == ["0", "1", "2"]


def test_embedding_draws_into_given_axes(wine, pyplot):
    X, y = wine
    figure, axes = pyplot.subplots(1, 2)
    display = EmbeddingDisplay.from_predictions(X, X[:, :1], y, ax=axes)
    assert display.figure_ is figure
    with pytest.raises(ValueError, match="ax must be 2 axes"):
        display.plot(ax=axes[0])


def test_embedding_without_classes_with_many_and_sparse(wine):
    X, _ = wine
    assert len(EmbeddingDisplay.from_predictions(X, X).axes_[0].collections) == 1
    many = EmbeddingDisplay.from_predictions(sparse.csr_array(X), X, np.arange(len(X)) % 60)
    assert len(many.axes_[0].collections) == 60
    assert many.axes_[1].get_legend() is None


def test_embedding_has_long_names_below_the_panels(wine):
    X, y = wine
    names = np.array(["a grower with a long name", "b", "c"])[y]
    display = EmbeddingDisplay.from_predictions(X, X, names)
    assert display.axes_[1].get_legend() is None
    texts = display.figure_.legends[0].get_texts()
    assert [text.get_text() for text in texts] == ["a grower with a long name", "b", "c"]


def test_embedding_of_two_maps_draws_stored_rows_too(wine):
    class Moved(BaseEstimator):
        def fit(self, X=None, y=None):
            self.n_features_in_ = 13
            return self

        def transform(self, X):
            return np.asarray(X)

        def transform_database(self, X):
            return np.asarray(X) + 1000

    X, y = wine
    options = {"gallery": X[100:], "gallery_labels": y[100:]}
    display = EmbeddingDisplay.from_estimator(Moved().fit(), X[:80], y[:80], **options)
    assert display.stored.tolist() == [False] * 80 + [True] * 78
    # maps that differ lie apart along the first axis
    first = display.after[:, 0]
    assert (first[:80].max() < first[80:].min()) or (first[:80].min() > first[80:].max())
    for axes in display.axes_:
        assert sum(len(c.get_offsets()) for c in axes.collections) == 158
    legend = [text.get_text() for text in display.axes_[1].get_legend().get_texts()]
    assert legend == ["0", "1", "2", "query, strong", "stored, pale"]
    with pytest.raises(ValueError, match="both y and gallery_labels"):
        EmbeddingDisplay.from_estimator(Moved().fit(), X, y, gallery=X)
    with pytest.raises(ValueError, match="gallery_labels is given without gallery"):
        EmbeddingDisplay.from_estimator(Moved().fit(), X, y, gallery_labels=y)


def test_embedding_bad_input(wine):
    X, y = wine
    with pytest.raises(ValueError, match="inconsistent"):
        EmbeddingDisplay.from_predictions(X, X[:5], y)
    with pytest.raises(NotFittedError):
        EmbeddingDisplay.from_estimator(GMMLTransformer(), X, y)


def test_matrix_and_spectrum(model):
    display = MetricMatrixDisplay.from_estimator(model, feature_names=[f"f{i}" for i in range(13)])
    heat, columns, spectrum = display.axes_
    matrix = model.get_mahalanobis_matrix()
    np.testing.assert_allclose(heat.images[0].get_array(), matrix)
    assert [t.get_text() for t in columns.get_yticklabels()][:2] == ["f0", "f1"]
    weights = matrix.diagonal() / matrix.diagonal().mean()
    up, down = columns.containers
    np.testing.assert_allclose([bar.get_width() for bar in up], weights[weights >= 1])
    np.testing.assert_allclose([bar.get_width() for bar in down], weights[weights < 1])
    drawn = spectrum.lines[0].get_ydata()
    np.testing.assert_allclose(
        np.sort(drawn), np.linalg.eigvalsh(model.get_mahalanobis_matrix()), rtol=1e-6
    )


def test_share_of_each_column_in_distances_of_rows(model, wine):
    X, _ = wine
    names = [f"f{i}" for i in range(13)]
    display = MetricMatrixDisplay.from_estimator(model, X, feature_names=names)
    legend = {text.get_text() for text in display.axes_[1].get_legend().get_texts()}
    assert legend == {"counts more", "turned down", "plain distance"}
    # all pairs of rows, one by one
    differences = (X[:, None] - X).reshape(-1, X.shape[1])
    added = (differences * (differences @ model.get_mahalanobis_matrix())).sum(axis=0)
    shares, plain = added / added.sum(), (differences**2).sum(axis=0) / (differences**2).sum()
    up, down = display.axes_[1].containers
    line = display.axes_[1].patches[-1]
    np.testing.assert_allclose([bar.get_width() for bar in up], shares[shares >= plain])
    np.testing.assert_allclose([bar.get_width() for bar in down], shares[shares < plain])
    np.testing.assert_allclose(line.get_data().values, plain)
    with pytest.raises(ValueError, match="13 columns"):
        MetricMatrixDisplay.from_estimator(model, X[:, :5])


def test_matrix_that_was_learned_elsewhere(model):
    matrix = model.get_mahalanobis_matrix()
    display = MetricMatrixDisplay.from_predictions(matrix)
    np.testing.assert_allclose(display.axes_[0].images[0].get_array(), matrix, atol=1e-9)
    with pytest.raises(ValueError, match="square and symmetric"):
        MetricMatrixDisplay.from_predictions(matrix[:3])


def test_high_dimension_draws_the_spectrum_alone():
    X = np.random.default_rng(0).standard_normal((20, 500))
    model = GMMLTransformer(random_state=0).fit(X, np.arange(20) % 2)
    display = MetricMatrixDisplay.from_estimator(model)
    assert len(display.axes_) == 1
    assert "481 other dimensions" in display.axes_[0].get_legend().get_texts()[1].get_text()


def test_ranking_draws_both_rankings_and_their_difference():
    y, qid = np.array([1, 0, 0, 1, 0, 0]), np.array([1, 1, 2, 2, 3, 3])
    good, bad = y.astype(float), -y.astype(float)
    display = RankingDisplay.from_predictions(y, good, qid, other=bad, name="good")
    curves, differences = display.axes_
    np.testing.assert_allclose(curves.lines[0].get_ydata(), [1, 1])
    np.testing.assert_allclose(curves.lines[1].get_ydata(), [1 / np.log2(3)] * 2)
    assert curves.get_legend().get_texts()[0].get_text() == "good, mean 1.000"
    assert [bar.get_height() for bar in differences.patches] == pytest.approx(
        [1 - 1 / np.log2(3)] * 2
    )
    assert differences.get_title() == "good:\nbetter in 2, worse in 0"


def test_ranking_of_an_estimator_is_that_of_its_scores():
    X, y, qid = make_ranking(n_queries=12, n_features=4, random_state=0)
    ranker = LocalGMMLRanker(n_metrics=1, max_epochs=2, random_state=0).fit(X, y, qid=qid)
    display = RankingDisplay.from_estimator(ranker, X, y, qid, other=X[:, 0], k=None)
    assert display.names == ("LocalGMMLRanker", "other")
    assert display.ndcg.mean() == pytest.approx(
        mean_ndcg(y, ranker.predict(X, qid=qid), qid, k=None)
    )
    assert display.axes_[0].get_ylabel() == "NDCG"


def test_ranking_without_a_relevant_document_is_an_error():
    with pytest.raises(ValueError, match="y: no query has a relevant document"):
        RankingDisplay.from_predictions([0, 0], [1, 2], other=[2, 1])


def test_generated_rows_have_the_axes_of_the_real_ones():
    rng = np.random.default_rng(0)
    real, generated = rng.standard_normal((2, 40, 5))
    display = GeneratedSamplesDisplay.from_predictions(real, generated)
    left, right = display.axes_
    assert [axes.get_title() for axes in display.axes_] == ["real", "generated"]
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim() == right.get_ylim()
    points = PCA(2).fit(real).transform(generated)
    np.testing.assert_allclose(right.collections[0].get_offsets(), points)
    flat = GeneratedSamplesDisplay.from_predictions(real[:, :1], generated[:, :1])
    np.testing.assert_array_equal(flat.axes_[0].collections[0].get_offsets()[:, 1], 0)


def test_generated_images_are_drawn_as_a_sheet():
    rows = np.arange(2 * 9 * 6).reshape(2, 9, 6)
    display = GeneratedSamplesDisplay.from_predictions(*rows, image_shape=(2, 3))
    sheet = display.axes_[1].images[0].get_array()
    assert sheet.shape == (12, 15)  # with a margin around each image
    np.testing.assert_array_equal(sheet[5:7, 6:9], rows[1, 4].reshape(2, 3))
    with pytest.raises(ValueError, match=r"image_shape=\(2, 2\) has 4 values, but rows have 6"):
        GeneratedSamplesDisplay.from_predictions(*rows, image_shape=(2, 2))
    with pytest.raises(ValueError, match="generated must have the 6 features"):
        GeneratedSamplesDisplay.from_predictions(rows[0], rows[1][:, :5])
    with pytest.raises(ValueError, match="generated contains NaN"):
        GeneratedSamplesDisplay.from_predictions(rows[0], np.nan * rows[1])


@pytest.mark.parametrize("bad", [[], [[1.0]], [np.nan]], ids=str)
def test_training_of_a_generator_bad_input(bad):
    with pytest.raises(ValueError, match="curve must"):
        GeneratorTrainingDisplay.from_predictions(bad, [1.0])
    with pytest.raises(ValueError, match="masses must"):
        GeneratorTrainingDisplay.from_predictions([1.0], bad)


def test_training_of_a_generator():
    display = GeneratorTrainingDisplay.from_predictions(np.linspace(3, 1, 100), [0.5, 2.0, 0.5])
    curve, cells = display.axes_
    np.testing.assert_allclose(curve.lines[0].get_ydata(), np.linspace(3, 1, 100))
    assert curve.lines[1].get_ydata()[-1] == pytest.approx(np.linspace(3, 1, 100)[-5:].mean())
    assert [bar.get_height() for bar in cells.patches] == [2.0, 0.5, 0.5]
    with pytest.raises(NotFittedError):
        GeneratorTrainingDisplay.from_estimator(GMMLTransformer())


def test_flow_of_labels_has_a_panel_for_given_and_for_propagated_ones():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 4))
    given = np.where(np.arange(30) < 6, np.arange(30) % 2, -1)
    propagated = np.where(np.arange(30) < 28, np.arange(30) % 2, -1)
    display = AffinityDisplay.from_predictions(
        points, given, propagated, rng.random(30), n_neighbors=3
    )
    left, right = display.axes_
    assert left.get_title() == "6 given labels"
    assert display.edges.shape == (90, 2)
    assert [len(c.get_offsets()) for c in left.collections[1:]] == [30, 3, 3]
    assert [len(c.get_offsets()) for c in right.collections[1:]] == [30, 14, 14]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["0", "1"]
    names = np.array(["a", "b", -1], dtype=object)[given]
    assert len(AffinityDisplay.from_predictions(points, names, names).axes_) == 2
    by_neighbours = AffinityDisplay.from_predictions(points, given, given, projection="tsne")
    assert by_neighbours.positions.shape == (30, 2)
    with pytest.raises(ValueError, match="projection must be"):
        AffinityDisplay.from_predictions(points, given, given, projection="umap")
    with pytest.raises(ValueError, match="inconsistent numbers"):
        AffinityDisplay.from_predictions(points, given[:-1], propagated)


def test_flow_of_an_estimator_draws_all_labels_and_some_others():
    class Model(BaseEstimator):
        n_neighbors = 4

        def fit(self, X, y):
            self.propagated_labels_ = np.arange(100) % 2
            self.propagated_confidence_ = np.ones(100)
            return self

        def transform(self, X):
            return X

    X = np.random.default_rng(0).standard_normal((100, 3))
    y = np.where(np.arange(100) % 10 == 0, np.arange(100) % 2, -1)
    display = AffinityDisplay.from_estimator(Model().fit(X, y), X, y, max_samples=40)
    assert len(display.positions) == 40
    assert (display.given != -1).sum() == 10


def test_ranking_display_explains_a_document():
    from skdml import LocalGMMLRanker
    from skdml.datasets import make_ranking

    X, y, qid = make_ranking(20, 10, 4, random_state=0)
    ranker = LocalGMMLRanker(max_epochs=1, random_state=0).fit(X, y, qid)
    display = RankingDisplay.from_estimator(ranker, X, y, qid, other=X[:, 0], explain=3)
    assert len(display.axes_) == 3
    assert sum(display.added.values()) == pytest.approx(ranker.predict(X, qid)[3], abs=1e-8)
    drawn = sum(bar.get_width() for bar in display.axes_[2].patches)
    assert drawn == pytest.approx(sum(display.added.values()))
    for row in (200, -201, "a"):
        with pytest.raises(ValueError, match="explain must be a row of X, below 200"):
            RankingDisplay.from_estimator(ranker, X, y, qid, other=X[:, 0], explain=row)
