"""The base of rankers: documents are scored query by query, and scores are explained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from ..metrics import mean_ndcg, ndcg_by_query
from ..utils import validation as checks
from ..utils._bases import BaseEstimator
from ..utils._parallel import computed, is_dask_array, limit_threads
from ..utils._sklearn import EstimatorMixin
from ..utils._typing import MatrixLike, Request
from ._anchor_model import AnchorModel, QueryWeights
from ._documents import Missing, check_rows, group_rows
from ._linear import LinearPart
from ._views import Normalizer

# Rows that are scored at a time, in whole queries.
_CHUNK = 4_000


class DocumentRanker(EstimatorMixin, BaseEstimator):
    """What a fitted ranker does with documents."""

    gains: str
    cutoff: int | None
    anchors_: NDArray
    _linear: LinearPart | None
    _model: AnchorModel
    _local_weight: float
    _missing: Missing
    _normalizer: Normalizer
    _documents: NDArray | None
    _weights: QueryWeights

    if TYPE_CHECKING:  # scikit-learn makes these from the signatures, for metadata routing

        def set_predict_request(self, *, qid: Request = None, query: Request = None) -> Self: ...
        def set_score_request(
            self, *, qid: Request = None, sample_weight: Request = None
        ) -> Self: ...

    def predict(
        self,
        X: MatrixLike,
        qid: ArrayLike | str | None = None,
        query: MatrixLike | None = None,
    ) -> NDArray:
        """Score documents; the higher, the more relevant to their query.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents. A dask array with `qid` gives a dask array, computed when it is needed.
        qid : array-like of shape (n_documents,) or "single", default=None
            The query of each document; "single" says that all are of one query. It may be left out
            if `fit` had no qid either, and the documents are then seen beside those of `fit`, or
            with a `query` of one row.
        query : array-like of shape (1, n_features) or (n_documents, n_features), default=None
            The query itself as a document, one for all or one for each document: query by
            example. It then takes the place of the ideal documents and of the linear part, and
            the local metrics count as much as their ideal documents are near to it.

        Returns
        -------
        scores : ndarray of shape (n_documents,)
            Only their order within a query has a meaning.
        """
        if is_dask_array(X) and query is None and not (qid is None or isinstance(qid, str)):
            return self._predict_lazily(X, qid)
        X, queries, known, examples = self._check_asked(X, qid, query)
        scores = np.empty(len(X))
        with limit_threads(1):
            for chunk in queries.chunks(_CHUNK):
                scores[chunk.order] = self._score_chunk(X, chunk, known, examples)
        return _without_rounding_errors(scores)

    def _predict_lazily(self, X, qid):
        """Score documents of a dask array when they are needed, in blocks of whole queries."""
        import dask
        import dask.array as da

        self._check_asked(np.ones((1, *X.shape[1:])), "single", None)
        qid = checks.check_vector(qid, "qid", X.shape[0])
        queries = group_rows(qid, len(qid))
        order, model = queries.order, dask.delayed(self, pure=False, traverse=False)
        rows = X if (np.diff(order) == 1).all() else X[order]
        names = [qid[chunk.order] for chunk in queries.chunks(max(X.chunks[0]))]
        blocks = rows.rechunk({0: tuple(map(len, names)), 1: -1}).to_delayed()[:, 0]
        scores = [
            da.from_delayed(model.predict(block, own), (len(own),), float)
            for block, own in zip(blocks, names, strict=True)
        ]
        found = da.concatenate(scores)
        return found if rows is X else found[np.argsort(order)]

    def explain(self, X: MatrixLike, qid: ArrayLike | str | None = None) -> Bunch:
        """Say what each feature and each ideal document adds to the scores of documents.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        qid : array-like of shape (n_documents,) or "single", default=None
            As in `predict`.

        Returns
        -------
        explanation : Bunch
            `features`, of shape (n_documents, n_features): what each feature adds through the
            linear part, with half of each product, less its mean in the query. `documents`, of
            shape (n_documents, n_anchors): what each of the `anchors_` adds, negative for a
            document near an anti-ideal one. The two, summed up, are the `scores`.
        """
        X, queries, known, _ = self._check_asked(X, qid, None)
        features = np.zeros((len(X), self.n_features_in_))
        documents = np.zeros((len(X), len(self.anchors_)))
        with limit_threads(1):
            for chunk in queries.chunks(_CHUNK):
                rows = chunk.order
                if self._linear is not None:
                    found = self._linear.by_feature(X[rows], chunk.starts, known)
                    features[rows] = self._missing.join(found)
                documents[rows] = self._explain_chunk(X, chunk, known)
        scores = features.sum(axis=1) + documents.sum(axis=1)
        return Bunch(features=features, documents=documents, scores=scores)

    def _check_asked(self, X, qid, query):
        """Return documents without missing cells, their queries, those of fit, and examples."""
        check_is_fitted(self)
        X = check_rows(self, X, reset=False)
        examples = self._check_examples(query, len(X))
        known = None
        if isinstance(qid, str):
            if qid != "single":
                raise ValueError(f"qid must be an array or 'single', got {qid!r}.")
            qid = None
        elif qid is None and self._documents is not None:
            known = self._documents
        elif qid is None and (query is None or np.shape(query)[0] != 1):
            raise ValueError(
                f"{type(self).__name__} was fitted with qid, so that predict, score and explain "
                "need the query of each document: pass qid=, or qid='single' if all documents are "
                "of one query. After a grid search, whose predict takes no qid, call "
                "search.best_estimator_.predict(X, qid=qid)."
            )
        queries = group_rows(qid, len(X))
        if qid is None:  # not a query that has a name
            queries = replace(queries, ids=np.array([None], dtype=object))
        X = self._missing.fill(X, queries if known is None else None)
        return X, queries, known, examples

    def _check_examples(self, query, n_rows):
        if query is None:
            return None
        options = {"accept_sparse": "csr", "dtype": np.float64, "ensure_2d": False}
        query = checks.check_named_array(query, "query", **options)
        query = checks.as_dense(query, "query")
        one, each = (1, self.n_features_in_), (n_rows, self.n_features_in_)
        if query.shape not in (one, each):
            raise ValueError(
                f"query has shape {query.shape}, expected {one} or {each}: one row for all "
                "documents or one for each."
            )
        return np.broadcast_to(query, each)

    def _score_chunk(self, X, chunk, known, examples):
        """Return the scores of whole queries, in the order of `chunk.order`."""
        place, model = self._normalizer.place, self._model
        if examples is not None:
            queries = [chunk.rows(number) for number in range(len(chunk.ids))]
            placed = [place(examples[q], X[q] if known is None else known) for q in queries]
            return model.scores_by_example(self._features(X, chunk, known), np.concatenate(placed))
        scores = np.zeros(len(chunk.order))
        if self._linear is not None:
            scores += self._linear.scores(X[chunk.order], chunk.starts, known)
        if self._local_weight:
            weights = self._weights.of_rows(X, chunk, chunk.ids.tolist())
            local = model.scores(self._features(X, chunk, known), weights=weights)
            scores += self._local_weight * local
        return scores

    def _features(self, X, chunk, known):
        if known is None:
            return self._normalizer.features(X, chunk)
        return self._normalizer.place(X[chunk.order], known)

    def _explain_chunk(self, X, chunk, known):
        """Return what each ideal document adds to scores of whole queries."""
        model = self._model
        if not self._local_weight:
            return np.zeros((len(chunk.order), len(self.anchors_)))
        own = self._weights.of_rows(X, chunk, chunk.ids.tolist())
        weights = model.weights if own is None else own
        return self._local_weight * model.parts(self._features(X, chunk, known), weights)

    def score(
        self,
        X: MatrixLike,
        y: ArrayLike,
        qid: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the mean NDCG of the queries that have a relevant document.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_features)
            The documents.
        y : array-like of shape (n_documents,)
            Their relevance, 0 or above.
        qid : array-like of shape (n_documents,) or "single", default=None
            As in `predict`.
        sample_weight : array-like of shape (n_documents,), default=None
            Weights of documents, >= 0; a query counts as the mean of its documents.

        Returns
        -------
        ndcg : float
            Between 0 and 1.
        """
        scores = np.asarray(computed(self.predict(X, qid=qid)))
        y = checks.check_grades(y, "y", len(scores))
        qid = None if isinstance(qid, str) else qid
        measure: dict[str, Any] = {"k": self.cutoff, "gains": self.gains}
        if sample_weight is None:
            return mean_ndcg(y, scores, qid, **measure)
        weight = checks.check_numbers(sample_weight, "sample_weight", len(scores))
        if (weight < 0).any():
            raise ValueError("sample_weight must not be negative.")
        names, ndcg = ndcg_by_query(y, scores, qid, **measure)
        codes = np.zeros(len(scores), int) if qid is None else np.searchsorted(names, qid)
        weight = np.bincount(codes, weight) / np.bincount(codes)
        counted = ~np.isnan(ndcg)
        if not weight[counted].any():
            raise ValueError(
                "sample_weight is zero for every query that has a relevant document: there is "
                "nothing to average."
            )
        return float(np.average(ndcg[counted], weights=weight[counted]))


def _without_rounding_errors(scores):
    """Return the scores on a grid: equal documents tie, wherever a matrix product had them.

    The grid is relative to the score, from 1 upwards: one outlier does not coarsen the others.
    """
    grid = np.exp2(np.ceil(np.log2(np.maximum(np.abs(scores), 1.0))) - 36)
    return np.round(scores / grid) * grid
