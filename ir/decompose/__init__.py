"""Schedules as values: a spec, decomposed step by step until each piece is what one instruction does.

In reading order:

    specs        the kinds of specs: MatMul, Move, Init; made by users and by steps
    stages       Compute and Reduce: the stages of a task
    strategy     the primitives: tile, to, split, move, accumulate_in, apply, done, and their refinements
    spec, stage_spec, levels    the data of a spec: axes, operands, the level of its workers
    steps        the steps as data; a tree is a spec and its steps
    checks, refusal    the conditions of the primitives, and the errors
    leaves       the instruction that does a spec
    micro/       micro-kernels: leaves that a user writes
    show, picture    a tree as text and as a drawing
    ownership    the task mapping that a tree means
    lowering     a finished tree as a kernel
    cores        loops that cores share, and their loops in vectors
    emit, copies, pipeline    its statements: of products, of copies, of copies fetched ahead
    blocks/      the tiles of blocks, the sums that workers share, and clusters
    groups/      threads that reduce together, and the leaves of their sums
    specialize, roles/    warpgroups with different roles: one fetches, the others multiply
    stage_leaves    the elements of stages
    views        the place of an operand's part in its buffer
    barriers     barriers between accesses to shared memory
    races        barriers that ``no_sync`` leaves out: proven races are refused
    facts        what a finished tree shows: barriers, bytes, workers

``taskmap.decompose`` is the public interface. May import: everything in ``ir``; the
interpreter only for the meaning of stages. After: Fireiron
(Hagedorn et al., PACT 2020).
"""
