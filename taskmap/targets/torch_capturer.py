"""CUDA graphs recorded by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class TorchCapturer:
    """Records with PyTorch's CUDA graphs, whose memory comes from a pool owned by this compiled graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Records the work of ``function``; raises RuntimeError if it synchronises with the GPU."""
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                function()
            replay: Callable[[], None] = graph.replay
            return replay
