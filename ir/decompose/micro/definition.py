"""The definition of a micro-kernel: what its author gives, with the conditions on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taskmap.ir.algebra.mapping import TaskMapping
from taskmap.ir.decompose.levels import SCOPE_NAMES, Level
from taskmap.ir.decompose.refusal import users_line
from taskmap.ir.decompose.spec import Spec
from taskmap.ir.errors import ScheduleError
from taskmap.ir.expressions import Buffer, Scope
from taskmap.ir.isa.entry import AtLeast, CpuTargets, Only, at_least
from taskmap.ir.nodes import Barrier, Body, For, Load, LoopKind, MatMul, Move, Stmt, Store, Var
from taskmap.ir.script.read import build
from taskmap.ir.script.statements import Script
from taskmap.ir.verify.structure import invoked_writes
from taskmap.ir.visit import stmt_exprs, walk_exprs, walk_stmts

LANGUAGES = {"c": "C", "cuda": "CUDA C++", "ptx": "PTX"}
"""The languages of text: C for a core, the others for threads of a GPU."""
_LEVELS = (Level.BLOCK, Level.WARPGROUP, Level.WARP, Level.THREAD, Level.CORE)
_ON_CPU, _ON_GPU = (Scope.REGISTER, Scope.LOCAL, Scope.GLOBAL), (Scope.REGISTER, Scope.SHARED, Scope.GLOBAL)
_OLDEST = {"cpu": "generic", "cuda": "sm_70"}
_NAMED = re.compile(r"\$(?:\{(\w+)\}|([a-zA-Z_]\w*))")


@dataclass(frozen=True, slots=True)
class Definition:
    """The name, the level, the memory of the operands and the holders of those in registers."""

    name: str
    level: Level
    places: tuple[Scope, ...]
    owners: Mapping[str, TaskMapping]

    @property
    def on_cpu(self) -> bool:
        """True if a core executes it."""
        return self.level is Level.CORE

    def refused(self, why: str, way_out: str) -> ScheduleError:
        """The error of a definition that cannot be."""
        where = users_line("micro_kernel")
        return ScheduleError(f"cannot make the micro-kernel {self.name!r}", where=where, why=why, hint=way_out)

    def spec(self, does: Spec) -> Spec:
        """The spec at its level, with its operands in their memories."""
        if self.level not in _LEVELS:
            why = f"a {self.level.value.lower()} is not a group of workers that execute code together."
            raise self.refused(why, "Use CORE, or THREAD, WARP, WARPGROUP or BLOCK.")
        if not isinstance(does, Spec) or does.kind not in ("matmul", "move"):
            raise self.refused(f"{does} is neither a product nor a copy.", "Give it MatMul(m, n, k) or Move(type).")
        if any(not isinstance(n, int) for _, n in does.extents):
            raise self.refused(f"{does} has a symbolic size.", "Give it the sizes of one tile.")
        names = ", ".join(o.name for o in does.operands)
        if len(self.places) != len(does.operands):
            why = f"{does} has the operands {names}, and {len(self.places)} memories are given."
            raise self.refused(why, "Give one memory for each operand, in order.")
        allowed = _ON_CPU if self.on_cpu else _ON_GPU
        wrong = next((s for s in self.places if s not in allowed), None)
        if wrong is not None:
            why = f"a micro-kernel of a {self.level.value.lower()} cannot take operands in {SCOPE_NAMES[wrong]}."
            raise self.refused(why, f"Use {', '.join(s.name for s in allowed)}.")
        pairs = zip(does.operands, self.places, strict=True)
        operands = tuple(replace(o, scope=place, strides=None) for o, place in pairs)
        return does.derived(level=self.level, operands=operands)

    def check_owners(self, spec: Spec) -> None:
        """Registers of several workers have owners, other operands none."""
        workers, shared = self.level.threads, self.level in (Level.WARP, Level.WARPGROUP)
        for o in spec.operands:
            owner, held = self.owners.get(o.name), o.scope is Scope.REGISTER
            if held and self.level is Level.BLOCK:
                raise self.refused(f"{o.name} is in registers of a whole block.", "Move it to SHARED first.")
            if (owner is not None) != (held and shared):
                why = f"nobody knows which of {workers} lanes holds which element of {o.name}."
                if owner is not None:
                    why = f"{o.name} is not distributed over lanes, and it is given an owner."
                raise self.refused(why, f"Give owners={{{o.name!r}: a mapping of {workers} workers}} for registers.")
            shape = spec.static_shape(o)
            if owner is not None and (owner.num_workers != workers or tuple(owner.task_shape) != shape):
                held_by = f"{owner} gives {list(owner.task_shape)} to {owner.num_workers} workers"
                why = f"{held_by}; {o.name} is {list(shape or ())}, and there are {workers}."
                raise self.refused(why, "Compose a mapping of exactly these.")
        extra = [name for name in self.owners if spec.operand(name) is None]
        if extra:
            raise self.refused(f"it has no operand {extra[0]!r}.", "Give owners by the names of the operands.")

    def operands(self, spec: Spec) -> tuple[Buffer, ...]:
        """The operands of a script function, each as a tensor of its own."""
        shapes = {o.name: spec.static_shape(o) or () for o in spec.operands}
        return tuple(
            Buffer(o.name, o.dtype, shapes[o.name], o.scope, owner=self.owners.get(o.name)) for o in spec.operands
        )

    def statements(self, script: Script, spec: Spec, operands: Sequence[Buffer]) -> Body:
        """The statements of a script function on these operands."""
        if not isinstance(script, Script):
            raise self.refused(f"{_named(script)} is not a script function.", "Decorate it with @script.")
        body = build(script, *operands)
        written = {b for s in walk_stmts(body) for b in _written(s)}
        inputs = [b.name for b in operands if b in written and b.name != spec.written]
        if inputs:
            raise self.refused(f"{script.__name__} writes {inputs[0]}, and {spec} writes {spec.written}.",
                               "Write the result only.")  # fmt: skip
        if operands[-1] not in written:
            raise self.refused(f"{script.__name__} does not write {spec.written}.", "Store the result.")
        looped = _looped_register(body, operands)
        if looped:
            why = f"{script.__name__} indexes {looped} by the variable of a loop, and registers have no addresses."
            raise self.refused(why, "Unroll the loop: for i in unroll(n).")
        if self.level is not Level.BLOCK and any(isinstance(s, Barrier) for s in walk_stmts(body)):
            why = f"{script.__name__} waits for the whole block, and a {self.level.value.lower()} executes it."
            raise self.refused(why, "Leave out barrier(); barriers of the tree are derived.")
        return body

    def text(self, text: object, language: str, names: Sequence[str]) -> str:
        """The text, which is in a language of the level and names operands that exist."""
        if not isinstance(text, str):
            why = f"{_named(text)} is neither a script function nor text."
            raise self.refused(why, "Decorate a function with @script.")
        fitting = ("c",) if self.on_cpu else ("cuda", "ptx")
        if language not in fitting:
            why = f"text of a {self.level.value.lower()} is {' or '.join(LANGUAGES[x] for x in fitting)}"
            why = f"{why}, not {LANGUAGES.get(language, repr(language))}."
            raise self.refused(why, f"Give language={' or '.join(map(repr, fitting))}.")
        if language != "ptx":
            return text
        plain = text.replace("$$", "")
        if "$" in _NAMED.sub("", plain):
            raise self.refused("a $ names no operand.", "Write $c for an operand, and $$ for a dollar sign.")
        used = {a or b for a, b in _NAMED.findall(plain)}
        unknown = sorted(n for n in used if n not in names and re.sub(r"\d+$", "", n) not in names)
        if unknown:
            raise self.refused(f"${unknown[0]} is not an operand.", f"The operands are {', '.join(names)}.")
        return text

    def targets(self, isa: str) -> AtLeast | Only | CpuTargets:
        """The processors that have it."""
        kind = "cpu" if self.on_cpu else "cuda"
        found = at_least(isa) if isa else AtLeast(kind, _OLDEST[kind])
        if found.kind != kind:
            raise self.refused(f"{isa} is not an instruction set of a {self.level.value.lower()}.", "Leave isa out.")
        return found


def _looped_register(body: Body, operands: Sequence[Buffer]) -> str:
    """An operand in registers that a loop which is not unrolled walks through; "" without one."""
    serial = {s.var for s in walk_stmts(body) if isinstance(s, For) and s.kind is LoopKind.SERIAL}
    for s in walk_stmts(body):
        accesses = [(e.buffer, e.indices) for root in stmt_exprs(s) for e in walk_exprs(root) if isinstance(e, Load)]
        accesses += [(s.buffer, s.indices)] if isinstance(s, Store) else []
        for buffer, indices in accesses:
            held = buffer in operands and buffer.scope is Scope.REGISTER
            if held and any(e in serial for i in indices for e in walk_exprs(i) if isinstance(e, Var)):
                return buffer.name
    return ""


def _named(given: object) -> str:
    return str(getattr(given, "__name__", f"{given!r}"))


def _written(s: Stmt) -> list[Buffer]:
    """The buffers that a statement writes."""
    if isinstance(s, Store):
        return [s.buffer]
    if isinstance(s, Move):
        return [s.dst.buffer]
    if isinstance(s, MatMul):
        return [s.c.buffer]
    return list(invoked_writes(s))
