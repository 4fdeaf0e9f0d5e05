"""Training steps on a CPU: forward, backward and an update of the weights.

    networks     small networks of the common kinds, and their inputs
    __main__     steps of eager mode, Inductor and taskmap, interleaved; gradients against eager mode's

May import: ``benchmarks.support``, and of ``benchmarks.models`` the errors.
"""
