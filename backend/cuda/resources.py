"""A kernel's use of GPU resources, read from the assembler's report (`ptxas -v`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from taskmap.ir.util.codec import FLAG, many, parsed, record, text, whole

_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_NUMBERS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared": re.compile(r"(\d+) bytes smem"),
}
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
_SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized")
_REMARK = re.compile(r"^(?:ptxas\s+)?(?:info|warning)\s*:\s*(.*(?:\(C\d+\)|[Ww]arning|Potential).*)$")
_WARNING = re.compile(r"(?:^|\): )warning\b[^:]*: .*")


@dataclass(frozen=True, slots=True)
class Resources:
    """Per thread: ``registers``, bytes of ``stack``, ``spill_stores`` and ``spill_loads``. Per block: ``barriers`` and
    bytes of static ``shared`` memory. Bytes of ``constant`` memory. ``warnings``: those of the compiler.

    ``serialized``: the assembler made asynchronous tensor instructions wait for each other.
    """

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0
    constant: int = 0
    barriers: int = 0
    serialized: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def spills(self) -> int:
        """Bytes of spilled registers."""
        return self.spill_stores + self.spill_loads

    def __str__(self) -> str:
        parts = [f"{self.registers} registers"]
        parts += [f"{self.spills} bytes spilled"] if self.spills else []
        parts += [f"{self.stack} bytes of stack"] if self.stack else []
        parts += [f"{self.shared} bytes of static shared memory"] if self.shared else []
        parts += ["serialised wgmma"] if self.serialized else []
        return ", ".join(parts)

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps(_RESOURCES.write(self))

    @staticmethod
    def from_json(text: str) -> Resources:
        """The resources that `to_json` wrote; ValueError for other text."""
        return _RESOURCES.read(parsed(text, "the resources"))


_COUNT = whole()
_RESOURCES = record(
    Resources,
    registers=_COUNT,
    stack=_COUNT,
    spill_stores=_COUNT,
    spill_loads=_COUNT,
    shared=_COUNT,
    constant=_COUNT,
    barriers=_COUNT,
    serialized=FLAG,
    warnings=many(text(1 << 20)),
)


def read_resources(log: str) -> Resources:
    """The resources of the single kernel in a compiler's log, including the stack of its callees."""
    found = Resources(serialized=_SERIALIZED.search(log) is not None)
    for match in _PROPERTIES.finditer(log):
        stack, stores, loads = (int(n) for n in match.groups())
        found = replace(
            found,
            stack=found.stack + stack,
            spill_stores=found.spill_stores + stores,
            spill_loads=found.spill_loads + loads,
        )
    numbers = {name: _number(pattern, log) for name, pattern in _NUMBERS.items()}
    found = replace(found, registers=numbers["registers"], barriers=numbers["barriers"], shared=numbers["shared"])
    constant = sum(int(match.group(1)) for match in _CONSTANT.finditer(log))
    remarks: dict[str, None] = {}
    for line in map(str.strip, log.splitlines()):
        remark = _REMARK.match(line)
        if remark is not None:
            remarks[remark.group(1)] = None
        elif _WARNING.search(line):
            remarks[line] = None
    return replace(found, constant=constant, warnings=tuple(remarks))


def _number(pattern: re.Pattern[str], log: str) -> int:
    match = pattern.search(log)
    return 0 if match is None else int(match.group(1))
