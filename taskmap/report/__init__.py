"""Reports on compiled models: as records, as text and as an HTML page.

Reading order:

    explain       taskmap.explain: compiles, runs and measures a model
    records       the records of a report
    presentation  what explain returns: the records as text, JSON and a page
    collect       a compiled graph and its timed runs become records
    text          the report as text
    kernels       adds kernel texts, value flows, peaks and conditions
    trees         the tree of the strategy that made a kernel
    mappings      pictures of a kernel's task mappings
    roofline      the ceilings of a target, and lower bounds on times
    sim_bounds    lower bounds on kernel times from the simulator's counts
    peaks         finds the ceilings: measured on a CPU, from data of a GPU
    html/         the report as one HTML page

It imports `ir`, `graph`, `schedules` and `backend`, and of taskmap `compile`, `onnx`, `options`, `targets`,
`torch_backend` and `util`.
"""
