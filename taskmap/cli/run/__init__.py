"""`taskmap run`: ONNX models and archives.

Reading order:

    command            the options, and the choice between model and archive
    onnx               runs an ONNX model
    archive            runs an archive, without torch and onnx
    inputs             inputs from files, or random ones
    facts              the reported facts, as text and JSON
    compare            compares outputs with another runner's
    layers             compares every node's result
    archive_profile    the profile of an archive's kernels

It may import every package of taskmap; only `cli` imports it.
"""
