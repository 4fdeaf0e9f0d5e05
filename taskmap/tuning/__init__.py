"""Tuning: measures configurations of an operator, and remembers the fastest in a database.

Reading order:

    tune          tunes one operator
    race          decides from samples what to measure next: pure functions
    job           the plain data exchanged with measuring processes
    workers       the pools or the executor that run jobs
    isolation     runs a job in child processes that may crash
    child         the measuring process
    bench         builds and measures on the CPU
    cuda_bench    builds and measures on a GPU
    operands      random operands
    expected      reference results and error bounds
    here          the conditions of measurements on this machine
    record        a record: operator, conditions, configuration, samples
    database      the records in one SQLite file
    connection    opens the file on any file system
    lockfile      mutual exclusion on file systems without locks
    repair        rebuilds a damaged file
    share         export, import, merge, compare
    miss          explains why no record applies
    choice        the configurations that a compilation uses

It imports `ir`, `schedules` and `backend`, and of taskmap `options`, `targets`, `trust` and `util`.
"""
