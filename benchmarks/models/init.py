"""Random weights under which activations keep a sane range through a deep convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def initialise_convnet(model: nn.Module, calibration: Tensor) -> None:
    """Draws weights in place, then sets every batch-norm's running statistics from one pass over `calibration`
    (batch, 3, height, width), so that each normalised activation has the mean and variance that the layer's own
    random affine parameters ask for, as in a trained network.

    Convolutions: He initialisation by fan-out (He et al., 2015). Fully connected layers: the same variance by fan-in.
    """
    norms = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            norms.append(module)
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    with torch.no_grad():
        model(calibration)
    model.eval()
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
        if norm.running_var is not None:
            norm.running_var.clamp_(min=1e-2)
