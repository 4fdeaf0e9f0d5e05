"""Strategies, those of users and of templates, as schedules of fused groups.

A tree of ``ir.decompose`` schedules the anchor of a group, and knows nothing of the operators around it. Its copies
then take the group's prologue, and its last copy the epilogue.

    product     the matrix product that anchors a task, and its operands as a tree sees them
    stages      other stages of a strategy, found in a task by their expressions
    views       operands that lie in memory unchanged, as buffers of the product's own axes
    merged      element-wise work on merged axes: all outputs at a position as one stage
    transpose   element-wise work that reads along one axis and writes along another, as a stage
    fusion      a Move whose source is computed, or whose destination is an epilogue, as loops over its elements
    offer       a strategy that a user offers, and the reason why it does not fit a task
    offers      the values of the option strategies as offers

Imports ``ir`` and ``schedules.common``.
"""
