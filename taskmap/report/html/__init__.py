"""The HTML page of a report: one self-contained file with its style, script and pictures.

Reading order:

    page      puts the page together
    text      escaped text, numbers with units
    graph     a picture of each graph's kernels
    layers    the layered drawing of an acyclic graph
    plot      the roofline plot
    trees     the tree of a strategy beside the kernel's text
    kernels   a section for each kernel
    mapping   pictures of task mappings

It imports `ir` and `report`.
"""
