"""The imports of all parts of `make gpu`, none of which uses the GPU: the process that the parts are forked from loads
them once."""

import torch._dynamo

import benchmarks.gpu.cases
import benchmarks.gpu.hardware
import benchmarks.models.plain
import taskmap.torch_backend

__all__ = ["benchmarks", "taskmap", "torch"]
