"""The prelude of generated C: one file per family of functions.

    types         scalar, vector and mask types
    memory        loads, stores, and moves of lanes
    neighbours    loads of each element into two lanes
    mask          masks
    cast          casts
    integer_casts integers of another width in one instruction
    quantise      casts after rounding to nearest, and to the range of a byte
    codes         codes of four bits as floats
    native        floating-point functions that are one instruction
    float         floating-point functions by plain arithmetic
    float32       elementary functions of f32 by polynomials
    float64       the same of f64
    hyperbolics   sinh and cosh of both
    trigonometry  sine, cosine, tangent
    inverse_trigonometry  asin, acos, atan, atan2
    through_f64   functions of f32 that are short formulas in f64
    division      fmod
    integer       integer functions
    libm          functions of the C library, lane by lane
    look_up       tables of 256 bytes
    dot           dot products of neighbours, one instruction each
    amx           tile registers, one instruction each, or the software model's
    reduce        reductions over the lanes of a vector
    vector_math   finds the definition of a function by its name

Imports ``ir`` only.
"""
