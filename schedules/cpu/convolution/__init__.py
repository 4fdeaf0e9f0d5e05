"""Direct convolution on a CPU, on padded input tiles.

    base               common base of the templates: a block of output positions, phase by phase
    input_tile         the padded input tile in a core's local memory
    template           dense convolution
    turned_rows        results that lie along columns, stored by strips
    dot_tile           the microkernel for few output channels: vectors along the sum
    depthwise          depthwise convolution
    paired_depthwise   of bf16: pairs of rows, multiplied by one instruction
    expansion          the image of a depthwise convolution, computed by a product in its kernel
    expansion_choice   one kernel for both or two
    expansion_config   configurations of one kernel for both
    expansion_cost     the cost model of that choice
    weight_gradient    the gradient of a convolution's weight
    config             configurations of the dense template: validity, default, space
    depthwise_config   configurations of the depthwise template
    cost               the cost model of both
    problem            a convolution as tuning sees it

Imports ``ir``, ``schedules.common``, and the microkernel and the cost model of ``schedules.cpu.matmul``.
"""
