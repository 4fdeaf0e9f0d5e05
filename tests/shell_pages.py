"""Pages of docs/ that are shell sessions: their commands run in order, and their output is compared.

```console                 lines after "$ " are commands, followed by their output
```python file=NAME        a file of the session

Commands are `taskmap ...`, `python NAME`, `echo $?`, `ls` and `rm`. Output that depends on the machine or the moment is
not compared: numbers, units of time and of rates, configurations, lengths of lines, rows of a distribution of times, in
which a mark may be in any row. "..." matches anything.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from taskmap.cli import main

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```(console|python file=(\S+))\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DISTRIBUTION = re.compile(r"(?m)(?:^ *#– .*\n?)+")


@dataclass(slots=True)
class Session:
    """A shell in ``folder``, which must be the current one; ``status`` is that of the last command."""

    folder: Path
    status: int = 0
    commands: list[str] = field(default_factory=list)

    def run(self, line: str) -> str:
        """The output of a command, errors included."""
        self.commands.append(line)
        if line == "echo $?":
            return f"{self.status}\n"
        words = shlex.split(line)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            self.status = self._run(words)
        return out.getvalue()

    def _run(self, words: list[str]) -> int:
        match words:
            case ["taskmap", *arguments]:
                try:
                    return main(arguments)
                except SystemExit as ended:
                    return int(ended.code or 0)
            case ["python", name]:
                runpy.run_path(str(self.folder / name), run_name="__main__")
            case ["ls", *names]:
                print(*names or sorted(p.name for p in self.folder.iterdir() if not p.name.startswith(".")))
                return int(not all((self.folder / n).exists() for n in names))
            case ["rm", name]:
                (self.folder / name).unlink()
            case _:
                raise AssertionError(f"a page may not run {words[0]!r}")
        return 0


def run_page(name: str, folder: Path) -> Session:
    """Run a page in ``folder``, the current one; returns the session with all its commands."""
    session = Session(folder)
    for kind, file, text in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8")):
        if kind != "console":
            (folder / file).write_text(text, encoding="utf-8")
            continue
        for command, shown in steps(text):
            printed = session.run(command)
            assert matches(shown, printed), f"{name} shows another output of\n$ {command}\n{printed}"
    return session


def steps(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output shown."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def matches(shown: str, printed: str) -> bool:
    """True if ``printed`` is the output on a page, apart from parts that may differ."""
    parts = [re.escape(part.strip()) for part in masked(shown).split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), masked(printed).strip(), re.DOTALL) is not None


def masked(text: str) -> str:
    """``text`` with everything that depends on the machine and the moment replaced."""
    text = re.sub(r"(?m)^taskmap: [a-z ]+: \d+/\d+$", "", text)  # how far work is that takes long
    text = re.sub(r"\b(cpu|cuda)\.(\w+)\([^)]*\)", r"\1.\2()", text)
    text = re.sub(r"\b(tile|rows|k_blocks|block|chunks|lanes)=[\w.x]+", r"\1=#", text)
    text = re.sub(r"\b(avx512|avx2|generic)\b", "isa", text)
    text = re.sub(r"\b(tm_\w+)_[0-9a-f]{16}\b", r"\1_#", text)  # a hash over the kernel's text
    text = re.sub(r"\d[\d.,]*(e[-+]?\d+)?", "#", text)
    text = re.sub(r"# ?([kMGT]?)(ms|µs|ns|s|op|B|[KMGT]iB|GFLOP/s|GB/s|%)(?!\w)", "#", text)
    text = _DISTRIBUTION.sub(_marks, text)
    text = re.sub(r"(?m)(\byes +#) +(default|cost model)(, cost model)?$", r"\1", text)  # at a row of records
    text = re.sub(r"[─█▏▎▍▌▋▊▉]+", "█", text)
    text = re.sub(r"\bthreads\b", "thread", text)
    return re.sub(r"\s+", " ", text)


def _marks(rows: re.Match[str]) -> str:
    """The names that point at rows of a distribution, in alphabetical order: times decide the rows."""
    names = [name.strip() for marks in re.findall(r"←(.*)", rows[0]) for name in marks.split(",")]
    return f"█ ← {', '.join(sorted(names))}\n"
