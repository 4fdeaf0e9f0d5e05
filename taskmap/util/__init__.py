"""Helpers for the whole package: nothing here knows the compiler's stages.

Reading order:

    progress          a progress bar on a terminal, or a line now and then
    logs              TORCH_LOGS and TORCH_TRACE
    metrics           process-wide counts of compilations and calls
    size_codec        symbolic sizes as JSON
    dump              every stage of a compilation as a numbered file
    own_version       a hash of taskmap's source files, for keys
    private_compile   a temporary torch.compile
    gc_pause          compile without the cyclic garbage collector
    held_storages     tensors that keep memory in place, and whether anybody else uses it
    stack_headroom    compile at the same speed at every call depth

It imports `ir` (errors, sizes) and `backend` (counters), and nothing else of taskmap.
"""
