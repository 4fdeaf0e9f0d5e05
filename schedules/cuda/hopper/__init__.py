"""Templates for Hopper: TMA, mbarriers, wgmma.

    tma_descriptor     a tensor as TMA reads it, in boxes
    load_plan          the path of an operand to a stage: TMA, cp.async, or registers
    matmul_config      configurations of the matmul template
    strategy           products as trees
    matmul             the matmul template: limits of its configurations
    stage              an operand of attention in the stages of a ring
    attention_config   configurations of the attention template
    attention_wgmma    the two products of attention by warpgroups
    attention          the attention template

Imports ``ir``, ``schedules.common``, ``schedules.strategies``, and ``schedules.cuda.{support,matmul,attention}``.
"""
