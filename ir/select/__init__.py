"""Instruction selection by equality saturation: a statement on vectors, and the instructions that compute it.

A statement becomes a term; the term enters an e-graph; rules add equal forms until none is new; the cheapest form that
consists of instructions of the table is extracted. An instruction is found by its spec and owners alone.

In reading order:

    address      the address of every lane: a base, and digits of a mixed-radix counter
    terms        the language of statements: nested ramps and broadcasts, group sums, dot products, instructions
    facts        the types, layouts and equal lanes of each class
    egraph       hash-consing, classes of equal terms, congruence by rebuilding
    rule         the form of a rule, and the limits of a search
    axioms, lifting, supporting, lowering    the rules, by kind
    instances    random terms that test a rule
    saturate     rules applied in rounds until nothing is new
    extract      the cheapest term of a class
    choose       a statement, a target and a table in; the chosen term and the record of the search out
    rows         rows of register tiles in pieces, by the instructions chosen for them
    tiles        products of tiles that a group of workers holds, by the instruction chosen for them
    microkernels the products of CPU microkernels as such tiles

Sources: Willsey et al., "egg: Fast and Extensible Equality Saturation", POPL 2021 (rebuilding, analyses); HardBoiled,
CGO 2026 (vector terms, kinds of rules). May import: ``ir.types``, ``ir.target``, ``ir.errors``, ``ir.algebra``,
``ir.isa``.
"""
