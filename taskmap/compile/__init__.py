"""The driver: from one captured graph to something that can be called from PyTorch.

Reading order:

    driver             the stages in order: import, passes, plan, kernels, programs
    session            state shared by compilations with the same options, and the record of each
    kernels            Compile: the kernels of one graph, scheduled, lowered and generated, or found in a store
    strategies         kernels by the strategies that a user offers
    task_store         generated C of tasks, kept between processes
    unfuse             takes a group apart that no schedule accepts as a whole
    random_order       random operators run in the model's order
    assemble           a plan and its kernels become programs: buffers, slots, steps
    sharing, aliases   results that share memory, as data and as traced by PyTorch
    runtime            calls a compiled graph with PyTorch's tensors
    output_pool        memory of large outputs, reused
    frozen             frozen parameters: constants computed once, and again after a change
    shared_constants   constants that several graphs computed alike are kept once
    constant_memory    one block of memory for all constants
    cuda_graphs        launches recorded once and replayed as a CUDA graph
    externs            operators that PyTorch or numpy runs
    aten               compiles a graph of ATen operators for AOTAutograd
    backward/          forward and backward graphs of one step, and what passes between them
    recurrent_layers   LSTM, GRU and RNN stay one operator per layer
    recurrent_tracing  Dynamo traces LSTM, GRU and RNN for this backend
    early_rules        operators that PyTorch takes apart before gradients are derived
    without_memory     calls with fake tensors
    operator_names     the operators of a graph and their sizes, as text
    index_names        names the operators behind an index out of range

It imports `ir`, `graph`, `schedules` and `backend`, and of taskmap `calls`, `options`, `targets`, `tuning` and `util`.
"""
