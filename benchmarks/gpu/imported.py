"""What every part of `make gpu` imports, and none of it uses the GPU: the process that the parts are forked from loads
this once."""

import torch._dynamo

import benchmarks.gpu.cases
import benchmarks.gpu.hardware
import benchmarks.models.plain
import taskmap.torch_backend

__all__ = ["benchmarks", "taskmap", "torch"]
