"""TfIdfVectorizer against a count of one window after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from taskmap.ir.errors import TaskmapError
from taskmap.onnx.engines import by_definition
from taskmap.onnx.model import load_model
from tests.onnx.models import INT64, model

POOL = [2, 5, 9, 2, 5, 5, 5, 9, 2, 2, 5, 9, 5, 5, 5]
STARTS = [0, 3, 9]
GRAMS = [(2,), (5,), (9,), (2, 5), (5, 5), (9, 2), (2, 5, 9), (5, 5, 5)]
PLACES = [7, 0, 1, 2, 3, 4, 5, 6]
WEIGHTS = [0.5, 1.0, 2.0, 3.0, 0.25, 4.0, 1.5, 0.75]


def vectorizer(shape: list[Any], **changed: Any) -> Any:
    given: dict[str, Any] = {
        "pool_int64s": POOL,
        "ngram_counts": STARTS,
        "ngram_indexes": PLACES,
        "weights": WEIGHTS,
        "min_gram_length": 1,
        "max_gram_length": 3,
        "max_skip_count": 0,
        "mode": "TF",
        **changed,
    }
    return model([helper.make_node("TfIdfVectorizer", ["x"], ["y"], **given)], {"x": (INT64, shape)}, ["y"])


def counted(row: Any, lengths: range, skips: int, mode: str) -> Any:
    found = np.zeros(len(GRAMS))
    for place, gram in zip(PLACES, GRAMS, strict=True):
        n = len(gram)
        for gap in range(1, skips + 2 if n > 1 else 2):
            windows = [tuple(row[s : s + (n - 1) * gap + 1 : gap]) for s in range(len(row) - (n - 1) * gap)]
            found[place] += windows.count(gram) if n in lengths else 0
    weights = np.empty(len(GRAMS))
    weights[PLACES] = WEIGHTS
    return {"TF": found, "IDF": weights * (found > 0), "TFIDF": found * weights}[mode]


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("lengths", "skips"), [(range(1, 4), 0), (range(2, 4), 3), (range(1, 2), 2), (range(3, 4), 9)])
def test_counts(lengths: range, skips: int, mode: str) -> None:
    given = {"min_gram_length": lengths.start, "max_gram_length": lengths.stop - 1, "max_skip_count": skips}
    x = np.random.default_rng(skips).choice([2, 5, 9, 4, -1], (6, 12))
    (made,) = load_model(vectorizer([6, 12], mode=mode, **given), engine=by_definition)(x)
    np.testing.assert_allclose(made, [counted(row.tolist(), lengths, skips, mode) for row in x])
    (alone,) = load_model(vectorizer([12], mode=mode, **given), engine=by_definition)(x[0])
    np.testing.assert_array_equal(alone, made[0])


@pytest.mark.parametrize(
    "changed",
    [
        {"ngram_indexes": PLACES[:-1]},
        {"ngram_indexes": [-1, *PLACES[1:]]},
        {"ngram_indexes": [1 << 40, *PLACES[1:]]},
        {"pool_int64s": POOL[:-1]},
        {"mode": "other"},
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(TaskmapError, match="TfIdfVectorizer"):
        load_model(vectorizer([12], **changed), engine=by_definition)(np.zeros(12, np.int64))
