"""Warpgroups of a block with roles: one fetches stages, others use them.

In reading order:

    boxes          the parts of a tensor that TMA copies
    ring           the stages, their barriers, and how wgmma reads them
    fetch          the role of the warpgroup that fetches
    kept_store     results that are kept in shared memory first

May import: what writes copies and loops (``copies``, ``pipeline``) and all below it.
"""
