"""The convolution of transformed weights that anchors a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast as typed

from taskmap.ir.construct import static_size
from taskmap.ir.nodes import Buffer, Load
from taskmap.ir.task import Task
from taskmap.ir.types import f32
from taskmap.ir.visit import walk_exprs
from taskmap.ir.winograd import ATTRIBUTE, FORMS, WinogradForm, weight_again, weight_shape
from taskmap.schedules.common.convolution_geometry import Convolution, find_convolution


@dataclass(frozen=True, slots=True)
class WinogradConvolution:
    """A convolution of ``weights`` in the order of ``weight_shape``, in panels of ``width`` output channels."""

    conv: Convolution
    form: WinogradForm
    weights: Buffer

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return static_size(self.weights.shape[-1]) or 0


def find_winograd(task: Task) -> WinogradConvolution | None:
    """The convolution of transformed weights that anchors a task; None for any other task, for images of one row or
    column, and if its definition reads the weights otherwise than the transformation stores them."""
    if task.anchor is None or ATTRIBUTE not in (attrs := dict(task.stages[task.anchor].attrs)):
        return None
    conv = find_convolution(task)
    if conv is None or conv.reduce.dtype != f32 or conv.order != (1, 2):
        return None
    form = FORMS[typed(int, attrs[ATTRIBUTE])]
    weights = next(e.buffer for e in walk_exprs(conv.w) if isinstance(e, Load))
    width = static_size(weights.shape[-1])
    if width is None or weights.shape != weight_shape(form, conv.channels, conv.out_channels, width):
        return None
    channel, *taps = (v for v, _ in conv.reduce.axes)
    if conv.w != weight_again(form, weights, conv.stage.axes[1], channel, taps):
        return None
    return WinogradConvolution(conv, form, weights)
