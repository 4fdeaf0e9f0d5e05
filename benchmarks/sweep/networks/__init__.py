"""Networks of the sweep that transformers lacks, each at its published size and in a small variant.

    blocks     convolution, norm and activation in one line; residual and gating blocks
    classic    AlexNet, VGG, SqueezeNet, GoogLeNet
    residual   ResNet, ResNeXt, SE-ResNet, a wide ResNet, a network for videos
    mobile     MobileNetV3, ShuffleNetV2, MNASNet, GhostNet
    dense      detection heads, segmentation, super-resolution
    unet       UNets, diffusion, a decoder of latent images, a generator
    sequence   recurrent, dilated and attention networks for speech and text
    graph      message passing, attention over edges, point clouds
    perceptron networks of fully connected layers: mixers, recommendation, radiance fields

May import: ``benchmarks.models``, ``benchmarks.sweep.entry``.
"""
