"""Runs ONNX models from Python.

Reading order:

    model          taskmap.onnx.load: a model as a callable
    named_inputs   matches a call's arrays to the model's inputs
    values         arrays, lists and None as a flat list of arrays, and back
    program        a model as a sequence of graphs with host steps between them
    points         the places in a program where graphs begin
    symbolic       one graph for all sizes, and the sizes that it allows
    loops          loops and scans on the host
    pieces         a graph's constants, for the driver
    engines        two engines: compiled graphs, and numpy by definition
    gpu_engine     compiled graphs on a GPU
    limits         refuses graphs that exceed the machine
    direct_call    repeated calls pass arrays straight to native code
    direct_chain   the same for a model of several graphs
    kept_models    compiled models kept between runs of the CLI
    backend        ONNX's own backend interface

It imports `ir`, `graph` and `backend`, and of taskmap `calls`, `compile`, `options`, `targets` and `util`.
"""
