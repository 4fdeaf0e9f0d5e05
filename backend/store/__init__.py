"""The kernel store: compiled kernels kept between processes.

    key         the source of a kernel, and the key of its binary
    objects     the store that compilers use
    folder      its files
    records     other records beside them, each with a checksum
    inventory   its contents, for listing and cleaning
    limit       its maximum size
    scratch     private temporary folders

Imports ``ir`` and ``backend``'s own modules of this folder.
"""
