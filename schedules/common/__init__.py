"""Building blocks that the schedules of CPUs and GPUs share.

    inline                 expressions of a task's elements, with producers inlined; every schedule is built on it
    access                 the steps of memory accesses along axes, and the axes that merge
    positions              positions in tensors of equal size
    segments               the pieces of an axis on which choices between tensors are decided
    loops                  vector loops with tails, and parallel grids
    jam                    several vectors of columns in one loop over rows
    epilogue               applies the stages after an anchor to a tile of its results
    row_domain             the rows that a task's reductions reduce
    scatter_domain         dependence of a scatter's positions on its source
    transpose_domain       element-wise work that reads and writes along different axes
    recurrence_domain      dependences between the phases of a recurrence's step
    recurrence_memory      a recurrence's states, and the step of a single unit
    attention_match        recognises attention
    convolution_geometry   recognises convolutions, and reads their geometry
    matmul_form            recognises matrix products, and gives their canonical form
    space                  problems, configurations, and the spaces that tuning searches
    config_text            the canonical text of configurations, written and read by one pattern
    scheduled              the result of scheduling: kernel, template, configuration, next attempt
    sampled_equality       equality of index expressions, tested on random values
    stack_limit            stack usage of a kernel

Imports ``ir`` only, and nothing from ``cpu`` or ``cuda``.
"""
