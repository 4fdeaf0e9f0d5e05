"""Single operators as people write them, against eager mode and Inductor: where is a cliff?

    case         an operator with its inputs, and the words of the tables
    elementwise  operators on each element
    reductions   sums, scans, norms and softmax
    movement     operators that move, choose and place elements
    images       pooling, interpolation, convolution
    products     products, attention, losses
    __main__     times them, forward and backward, and compares results and gradients with float64

May import: ``benchmarks.support``, and of ``benchmarks.models`` the errors.
"""
