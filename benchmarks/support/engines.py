"""The engines under comparison: each takes a module and an example call, and returns a function to time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import as_tensors

Run = Callable[[], Any]
Prepare = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Run]


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to run a model.

    Attributes:
        name: on the command line and in tables.
        prepare: module, positional and keyword arguments to a function that runs them once and returns the outputs.
        needs: modules that must be importable.
        own_threads: it has a thread pool of its own, which may go on spinning after a call.
    """

    name: str
    prepare: Prepare
    needs: tuple[str, ...] = ()
    own_threads: bool = False

    def missing(self) -> str | None:
        """The first module it needs that is not installed."""
        return next((name for name in self.needs if not installed(name)), None)


def installed(name: str) -> bool:
    """True if the module can be imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def torch_backend(name: str) -> str | Callable[..., Any]:
    """The argument of `torch.compile(backend=...)`: the name, or, if taskmap is used from a checkout that is not
    installed and so has no entry point, the function behind the name."""
    if name == "taskmap" and name not in torch.compiler.list_backends(exclude_tags=()):
        backend: Callable[..., Any] = import_module("taskmap.torch_backend").compile_fx
        return backend
    return name


def eager(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    """The module as it is."""
    return lambda: module(*args, **kwargs)


def compiled(backend: str) -> Prepare:
    """The module through `torch.compile`."""

    def prepare(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        def call(*given: Any, **named: Any) -> Any:
            return module(*given, **named)

        # Code that Dynamo leaves to PyTorch for one backend is left to it for all: taskmap has some of its own.
        apart = backend == "taskmap" and any(isinstance(m, nn.RNNBase) for m in module.modules())
        function = torch.compile(call if apart else module, backend=torch_backend(backend))
        return lambda: function(*args, **kwargs)

    return prepare


def inductor_freezing(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    """Inductor with parameters as constants, compiled here and now.

    The option must hold for the whole compilation: given to `torch.compile(options=...)` it changes nothing. It is not
    among what dynamo compares, so a backend of its own keeps this code apart from plain Inductor's.
    """

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        return import_module("torch._inductor.compile_fx").compile_fx(graph, inputs)

    function = torch.compile(module, backend=backend)
    with import_module("torch._inductor.config").patch(freezing=True), torch.no_grad():
        function(*args, **kwargs)
    return lambda: function(*args, **kwargs)


class _Tuple(nn.Module):
    """A module whose outputs are a tuple of tensors and whose keyword arguments are fixed, for export."""

    def __init__(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.kwargs = kwargs

    def forward(self, *args: Any) -> tuple[Tensor, ...]:
        return as_tensors(self.module(*args, **self.kwargs))


def export_onnx(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], folder: str) -> str:
    """Writes the module as `folder`/model.onnx, with weights beside it where they are large, and returns the path."""
    path = str(Path(folder) / "model.onnx")
    torch.onnx.export(_Tuple(module, kwargs).eval(), args, path, dynamo=True, verbose=False)
    return path


def onnxruntime(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    """ONNX Runtime on the CPU with all graph optimisations, from PyTorch's ONNX export."""
    ort = import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(module, args, kwargs, folder)
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: tuple(torch.from_numpy(output) for output in session.run(None, feed))


def openvino(precision: str) -> Prepare:
    """OpenVINO on the CPU, tuned for latency, computing in `precision` ("f32", "bf16"), from PyTorch's ONNX export."""

    def prepare(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        ov = import_module("openvino")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        with tempfile.TemporaryDirectory() as folder:
            model = ov.Core().compile_model(export_onnx(module, args, kwargs, folder), "CPU", settings)
        request = model.create_infer_request()
        feed = [a.numpy() for a in args]
        return lambda: tuple(torch.from_numpy(output) for output in request.infer(feed).to_tuple())

    return prepare


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("eager", eager),
        Engine("taskmap", compiled("taskmap"), needs=("taskmap.torch_backend",)),
        Engine("inductor", compiled("inductor")),
        Engine("inductor-freezing", inductor_freezing),
        Engine("aot_eager", compiled("aot_eager")),
        Engine("onnxruntime", onnxruntime, needs=("onnxruntime", "onnxscript"), own_threads=True),
        Engine("openvino", openvino("f32"), needs=("openvino", "onnxscript"), own_threads=True),
        Engine("openvino-bf16", openvino("bf16"), needs=("openvino", "onnxscript"), own_threads=True),
    )
}


def choose(names: list[str]) -> tuple[list[Engine], list[str]]:
    """The named engines that can run here, and a note on each that cannot.

    An unknown name ends the program with the known ones.
    """
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise SystemExit(f"unknown engine {unknown[0]!r}; known are {', '.join(ENGINES)}")
    wanted = [ENGINES[name] for name in names]
    notes = [f"{e.name} was left out: {e.missing()} is not installed" for e in wanted if e.missing()]
    return [e for e in wanted if not e.missing()], notes
