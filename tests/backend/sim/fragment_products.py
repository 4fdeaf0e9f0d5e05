"""Products of opaque fragments as hardware promises them: loaded, multiplied and stored. Which element a lane holds is
the hardware's own, so nothing else reads a fragment. Needs no pytest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taskmap.backend.sim import run as sim
from taskmap.backend.store.objects import KernelStore
from taskmap.ir.isa.entry import Instruction
from taskmap.ir.isa.specs import FragmentMoveSpec, MatMulSpec
from taskmap.ir.isa.table import INSTRUCTIONS
from tests.backend.sim.instruction_runs import C_TYPES, loaded, stored, whole_numbers
from tests.backend.sim.kernels import kernel

_STRIDE = 48


@dataclass(frozen=True, slots=True)
class FragmentProduct:
    """c += a · b by ``multiply``, with a by rows and b by columns, or the other way round ``by_columns``; c is loaded
    by rows and stored by columns, or the other way round."""

    multiply: Instruction
    by_columns: bool

    def __str__(self) -> str:
        return f"fragments_are_loaded_multiplied_and_stored-{self.multiply.name}-{int(self.by_columns)}"

    @property
    def moves(self) -> tuple[Instruction, Instruction, Instruction, Instruction]:
        """The loads of a, b and c, and the store of c."""
        spec = self.multiply.spec
        assert isinstance(spec, MatMulSpec)
        shape = (spec.m, spec.n, spec.k)

        def move(operand: str, dtype: object, *, store: bool = False) -> Instruction:
            wanted = [i for i in INSTRUCTIONS if i.spec == FragmentMoveSpec(operand, *shape, dtype, store)]  # type: ignore[arg-type]
            return wanted[0]

        return move("a", spec.a), move("b", spec.b), move("c", spec.c), move("c", spec.c, store=True)

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries that take part."""
        return (self.multiply.name, *(move.name for move in self.moves))

    def check(self, store: KernelStore) -> None:
        """Raises AssertionError if the stored fragment is not c + a · b."""
        spec, moves = self.multiply.spec, self.moves
        assert isinstance(spec, MatMulSpec)
        matrices = {
            name: whole_numbers(dtype, shape)
            for name, dtype, shape in (
                ("a", spec.a, (spec.m, spec.k)), ("b", spec.b, (spec.k, spec.n)), ("c", spec.c, (spec.m, spec.n))
            )
        }  # fmt: skip
        turned = {"a": self.by_columns, "b": not self.by_columns, "c": self.by_columns, "d": not self.by_columns}
        dtypes = {"a": spec.a, "b": spec.b, "c": spec.c, "d": spec.c}
        memories = {}
        for name, dtype in dtypes.items():
            matrix = matrices["c" if name == "d" else name]
            rows, columns = matrix.shape[::-1] if turned[name] else matrix.shape
            memories[name] = np.zeros((rows, _STRIDE), stored(matrix, dtype).dtype)
            if name != "d":
                memories[name][:, :columns] = stored(matrix.T if turned[name] else matrix, dtype)
        body = ""
        for name, move in zip("abc", moves, strict=False):
            assert move.owner_c is not None
            body += registers_of(name, move) + f"  {move.text}<{int(turned[name])}>(r{name}, {name}, {_STRIDE});\n"
        layouts = f"{int(turned['a'])}, {int(turned['b'])}"
        body += f"  {self.multiply.text}<{layouts}>(rc, ra, rb);\n"
        body += f"  {moves[3].text}<{int(turned['d'])}>(d, rc, {_STRIDE});"
        parameters = ", ".join(f"tm_global<{C_TYPES[dtype.name]}> {name}" for name, dtype in dtypes.items())
        sim.run(kernel(body, parameters, threads=32), list(memories.values()), store=store)
        got = loaded(memories["d"], spec.c)
        shown = got[:, : spec.m if turned["d"] else spec.n]
        want = matrices["c"] + matrices["a"] @ matrices["b"]
        np.testing.assert_array_equal(shown.T if turned["d"] else shown, want.astype(shown.dtype))


def registers_of(name: str, move: Instruction) -> str:
    """The declaration of a fragment's registers."""
    assert isinstance(move.spec, FragmentMoveSpec)
    assert move.owner_c is not None
    return f"  alignas(8) {C_TYPES[move.spec.dtype.name]} r{name}[{move.owner_c.num_slots}];\n"


FRAGMENT_PRODUCTS = tuple(
    FragmentProduct(entry, by_columns)
    for entry in INSTRUCTIONS
    if entry.opaque and isinstance(entry.spec, MatMulSpec) and entry.targets.kind == "cuda"
    for by_columns in (False, True)
)
"""Every product of opaque fragments, in both layouts."""
