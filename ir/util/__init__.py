"""Small helpers that belong to no package.

    lazy            functions whose modules load at the first call
    wording         shapes and lists of numbers in messages
    atomic_write    files that readers see complete, with the old content or the new
    codec           JSON codecs: one description writes values and validates what is read
    waiting         waits for futures that an interrupt always ends

May import: ``ir.errors``.
"""
