"""Small helpers that belong to no package.

    lazy            functions whose modules load at the first call
    wording         shapes and lists of numbers in messages
    atomic_write    files that readers see complete, with the old content or the new
    waiting         waits for futures that an interrupt always ends

May import: ``ir.errors``.
"""
