"""TfIdfVectorizer: counts of token sequences in rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskmap.graph.importers.onnx.read.call import OnnxCall
from taskmap.graph.importers.onnx.read.elements import STRING
from taskmap.graph.importers.onnx.read.host import on_host
from taskmap.graph.importers.onnx.read.table import lowering

Array = NDArray[Any]
LARGEST = 1 << 24
"""The largest number of columns of a result, and of tokens in a pool."""


@lowering("TfIdfVectorizer")
def _tf_idf(call: OnnxCall) -> Any:
    x = call.tensor(0)
    of_words = x.elem == STRING
    pool = np.array(call.required("pool_strings" if of_words else "pool_int64s"), object if of_words else np.int64)
    mode, starts, places = call.required("mode"), call.required("ngram_counts"), call.required("ngram_indexes")
    shortest, longest = int(call.required("min_gram_length")), int(call.required("max_gram_length"))
    skips = int(call.required("max_skip_count"))
    weights = np.array(call.attr("weights") or [1.0] * len(places), np.float32)
    size = max(places, default=-1) + 1
    if min(places, default=0) < 0 or not 0 < size <= LARGEST or len(pool) > LARGEST or len(weights) != len(places):
        raise call.error("the positions, weights and pool of its n-grams do not fit together")
    lengths = _by_length(pool, starts)
    if sum(len(grams) for grams in lengths) != len(places) or mode not in ("TF", "IDF", "TFIDF"):
        raise call.error(f"{len(places)} positions of n-grams in the mode {mode}")
    words = np.unique(pool)
    tables = [_Table(grams, words) for grams in lengths]

    def run(a: Any) -> Any:
        tokens = _numbers(words, np.atleast_2d(a))
        found = [
            table.count(tokens, skips) if shortest <= n <= longest else np.zeros((len(tokens), table.grams))
            for n, table in enumerate(tables, 1)
        ]
        counts = np.concatenate(found, 1).astype(np.float32)
        value = {"TF": counts, "IDF": weights * (counts > 0), "TFIDF": counts * weights}[mode]
        made = np.zeros((len(tokens), size), np.float32)
        made[:, places] = value
        return made.reshape(*a.shape[:-1], size)

    shape = (size,) if len(x.shape) == 1 else (x.shape[0], size)
    return on_host(call, run, [(1, shape)], "n-grams")


def _by_length(pool: Array, starts: Sequence[int]) -> list[Array]:
    """The n-grams of the pool, [count, n] for each n: those of length 1 from ``starts[0]``, of 2 from ``starts[1]``."""
    ends = [*starts[1:], len(pool)]
    parts = [pool[a:b] for a, b in zip(starts, ends, strict=True)]
    return [part[: len(part) // n * n].reshape(-1, n) for n, part in enumerate(parts, 1)]


def _numbers(ordered: Array, values: Array) -> Array:
    """The positions of ``values`` in ``ordered``, -1 for values that do not occur there."""
    if not len(ordered):
        return np.full(values.shape, -1)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.where(ordered[place] == values, place, -1)


class _Table:
    """N-grams of one length as a trie: for each token, the prefixes of n-grams that end with it."""

    def __init__(self, grams: Array, words: Array) -> None:
        self.grams, self.length = grams.shape
        self.base = len(words) + 1
        self.levels: list[Array] = []
        prefix = np.zeros(self.grams, np.int64)
        for tokens in np.moveaxis(grams, 1, 0):
            level, prefix = np.unique(prefix * self.base + _numbers(words, tokens), return_inverse=True)
            self.levels.append(level)
        self.of_leaf = np.zeros(len(self.levels[-1]), np.int64)
        self.of_leaf[prefix.reshape(-1)] = np.arange(self.grams)

    def count(self, tokens: Array, skips: int) -> Array:
        """The number of occurrences of each n-gram in each row, with up to ``skips`` tokens skipped between two."""
        found = np.zeros((len(tokens), self.grams))
        for gap in range(1, skips + 2 if self.length > 1 else 2):
            windows = tokens.shape[1] - (self.length - 1) * gap
            if windows < 1:
                break
            run = np.zeros((len(tokens), windows), np.int64)
            for j, level in enumerate(self.levels):
                token = tokens[:, j * gap : j * gap + windows]
                run = np.where((run >= 0) & (token >= 0), _numbers(level, run * self.base + token), -1)
            rows, places = np.nonzero(run >= 0)
            np.add.at(found, (rows, self.of_leaf[run[rows, places]]), 1)
        return found
