"""Helpers that the benchmarks share.

    harness      times engines, interleaved, in one process
    engines      the engines that are compared: eager, Inductor, ONNX Runtime, OpenVINO, taskmap
    child        one compilation in a process of its own
    functions    small functions that some benchmarks compile
    flows        programs whose calls differ in lengths, batches, caches, scalars or modes
    onnx_verdict judges the results of a mutated ONNX model
    tuning_spent the duration of tuning, by operator and phase
    patience     a limit on the time of one measurement
    conditions   the machine, versions and settings of a run
    report       the table, the JSON file, and bounds

May import: ``benchmarks.models``, ``taskmap``.
"""
