"""Operators of ai.onnx.ml, the domain of classic machine learning. In reading order:

    scores           transformations of scores, and the labels of the best
    forests          decision trees as arrays, evaluated by numpy
    trees            TreeEnsemble
    classic_trees    TreeEnsembleClassifier and TreeEnsembleRegressor
    linear_models    scaling, imputation and linear models
    vector_machines  SVMRegressor and SVMClassifier
    categories       labels, one-hot encoding and features side by side
    maps             CastMap and DictVectorizer
    ngrams           TfIdfVectorizer

May import: ``importers.onnx.read``, ``importers.onnx.ops.matmul``, ``importers.onnx.ops.strings``, ``graph.ops``,
``graph.nodes`` and ir.
"""
