"""Templates for Hopper: TMA, mbarriers, wgmma."""
