"""Archives: a compiled model in one file, which runs without a compiler, torch or onnx.

Reading order, for writing:

    write        compiles an ONNX model into an archive
    refusals     the reasons why a model cannot be archived
    session      a compilation session with its binaries
    targets      such a session for each kind of target
    graph        the program and binding of a compiled graph as a plan
    keep_model   keeps a compiled ONNX model for the next process, as archives
    kept_parts   the graphs of such a model, with their inputs and results
    outside_weights  the weights that it need not store

for the format:

    file         the container: a zip with aligned, uncompressed entries
    manifest     its text: machine, weights, kernels, plans
    kernels      launch parameters of GPU kernels as JSON

and for running:

    load         taskmap.load: an archive becomes a callable model
    memory       a file mapped or copied into memory
    machine      the check that the kernels run on this machine
    plan         a plan resolved at known sizes, and checked
    conditions   the sizes that a plan is for, as text
    place        the device: the CPU, or another behind the same interface
    kept_chain   a kept model: one archive after another
    found_weights  the weights that it did not store
    gpus, cuda   a GPU
    sim          the simulated GPU

Loading imports `ir` and `backend`; writing also `graph`, and of taskmap `compile`, `onnx`, `targets`, `tuning`.
"""
