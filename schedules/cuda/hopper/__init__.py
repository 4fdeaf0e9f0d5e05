"""Templates for Hopper: TMA, mbarriers, wgmma.

    tma_descriptor     a tensor as TMA reads it, in boxes
    stage              an operand in the stages of a ring, and its load path: TMA, cp.async, or registers
    wgmma              products by warpgroups
    tma_store          the result through shared memory, by TMA
    matmul_config      configurations of the matmul template
    matmul             the matmul template
    attention_config   configurations of the attention template
    attention_wgmma    the two products of attention by warpgroups
    attention          the attention template

Imports ``ir``, ``schedules.common``, and ``schedules.cuda.{support,matmul,attention}``.
"""
