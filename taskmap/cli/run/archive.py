"""`taskmap run model.taskmap`, after its options: runs an archive. Nothing is compiled, and neither torch nor onnx is
loaded."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from taskmap.archive.kept_chain import KeptModel
from taskmap.archive.load import ArchivedModel, load
from taskmap.backend.program.arrays import numpy_dtype
from taskmap.cli.output import print_json
from taskmap.cli.run.compare import Comparison, compare, other_outputs
from taskmap.cli.run.facts import facts_of, graph_count, graph_facts, print_facts, save, saying_assumed, timed
from taskmap.cli.run.inputs import InputSpec, Wanted, inputs_for
from taskmap.ir.errors import InputError, TaskmapError
from taskmap.ir.util.lazy import lazily
from taskmap.onnx.kept_models import Kept

# An unprofiled run loads only what it needs: the first result waits for the imports.
if TYPE_CHECKING:
    from taskmap.cli.run.archive_profile import profile as _profile
    from taskmap.cli.run.archive_profile import profile_table as _profile_table
else:
    _profile = lazily("taskmap.cli.run.archive_profile", "profile")
    _profile_table = lazily("taskmap.cli.run.archive_profile", "profile_table")


def run_archive(a: argparse.Namespace, kept: Kept | None = None) -> int | None:
    """Run the archive given by the options; 1 if a comparison found a difference.

    ``kept``: the archive kept from an earlier run of the model ``a.model``. If it cannot be loaded, or has no plan for
    the inputs, the result is None and nothing has run.
    """
    began = time.perf_counter()
    if kept is None:
        _refuse(a)
        plain = load(a.model, threads=a.threads, sha256=a.sha256, profile=a.profile)
        _check_target(a, plain)
        model: ArchivedModel | KeptModel = plain
    else:
        try:
            model = KeptModel(kept, a.threads)
        except TaskmapError:
            return None
    specs = [InputSpec(p.name, numpy_dtype(p.dtype), p.shape) for p in model.inputs]
    inputs, assumed = inputs_for(specs, Wanted(a.input, a.shape, dict(a.range), a.seed))
    ordered = [inputs[p.name] for p in model.inputs]
    try:
        last = model.last(*ordered) if isinstance(model, KeptModel) else model
    except TaskmapError:  # of a part of the chain
        return None
    if last is None:
        return None
    with saying_assumed(assumed):
        outputs = model(*ordered)
    first = time.perf_counter() - began
    for _ in range(a.warmup):
        model(*ordered)
    if isinstance(model, ArchivedModel):
        for _, runs in model.timed_runs():
            runs.clear()
    times = [timed(lambda: model(*ordered)) for _ in range(a.repeat)]
    names = [p.name for p in last.outputs]
    verdicts: list[Comparison] = []
    if a.compare:
        source = a.onnx if kept is None else a.model
        verdicts = compare(names, outputs, other_outputs(a.compare, source, inputs, a.threads), a.rtol, a.atol)
    named = dict(zip(names, outputs, strict=True))
    if a.save is not None:
        save(a.save, named)
    facts = facts_of(inputs, named, first, times, assumed, verdicts)
    made = (model.count(*ordered), int(model.is_general)) if isinstance(model, KeptModel) else (0, 0)
    if kept is not None:
        facts |= {"graphs": graph_facts(*made), "kept": True}
    steps = _profile(model, a.trace, a.cache_dir) if a.profile and isinstance(model, ArchivedModel) else []
    if a.json:
        print_json({**facts, **({"profile": {"steps": steps}} if a.profile else {})})
    else:
        print_facts(facts, verdicts, a)
        if kept is not None:
            is_open = not all(isinstance(n, int) for p in model.inputs for n in p.shape or ())
            print(graph_count(*made, is_open))
        if a.profile:
            print(f"\n{_profile_table(steps)}")
    return int(not all(v.equal for v in verdicts))


def _refuse(a: argparse.Namespace) -> None:
    """Refuse options that do not apply to an archive."""
    if a.trace is not None and not a.profile:
        raise InputError("a trace needs a profile", hint="Add --profile.")
    if a.layers:
        raise InputError(
            "an archive has no nodes to compare", hint="Compare its model's nodes: taskmap run model.onnx --layers"
        )
    if a.compare and a.onnx is None:
        raise InputError(
            "an archive has nothing to compare with", hint="Name the model that it was made from: --onnx model.onnx"
        )
    if a.tune is not None:
        raise InputError(
            "an archive cannot be tuned", why="its kernels are compiled.", hint="Use taskmap compile --tune SECONDS."
        )
    if a.gpu is not None:
        raise InputError("the GPU of an archive cannot be changed", hint="Leave --gpu out.")
    if a.isa is not None:
        hint = "Leave --isa out, or compile another: taskmap compile --isa."
        raise InputError("the instruction set of an archive cannot be changed", hint=hint)


def _check_target(a: argparse.Namespace, model: ArchivedModel) -> None:
    kind = model.manifest.machine.kind
    if a.target not in (None, kind):
        hint = f"Compile another: taskmap compile model.onnx --target {a.target}"
        raise InputError(f"the archive does not run on the target {a.target}", why=f"it is for {kind}.", hint=hint)
