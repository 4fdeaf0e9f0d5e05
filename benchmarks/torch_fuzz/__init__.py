"""Random PyTorch programs, compiled and compared with eager.

Reading order: program.py (a program as text), numbers.py (its inputs), scope.py and the operators (one step:
operators.py, contractions.py, views.py, memory.py, rare.py), generate.py (a program from a seed), run.py (one run, and
everything that a caller can observe of it), compare.py and rounding.py (two runs beside each other), check.py (the
verdict), worker.py (a process that may crash), reduce.py (the smallest program that fails in the same way),
__main__.py.
"""
