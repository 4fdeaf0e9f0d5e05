"""Passes that decide how convolutions are computed on a CPU; the driver runs them.

    products      convolutions of narrow floats become products of tiles
    expansions    depthwise convolutions compute the product that only they read

May import: what ``graph.passes`` may, and ``passes.base``.
"""
