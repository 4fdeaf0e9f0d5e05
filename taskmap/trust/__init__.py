"""No C compiler is trusted before it was tried: kernels of every kind and element type, compiled and compared with the
interpreter, once for each compiler, its flags and this version of taskmap.

Reading order: corpus (the kernels), trial (compiling and running them), ladder (flags for a compiler that is wrong),
verdict (what is kept), compiler (the one that the platforms ask for).
"""
