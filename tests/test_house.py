"""The import rules between packages, the light import of taskmap, and rules for every file."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path

import pytest

from tests.floors import FLOORS
from tests.import_graph import circles, import_graph, imported, late_and_typed, module_of, modules, units, upward

ROOT = Path(__file__).parent.parent
ROOMS = ("taskmap", "ir", "graph", "schedules", "backend")
OUTSIDE = ("tests", "examples", "benchmarks")
MAY_IMPORT = {
    "ir": {"ir"},
    "graph": {"graph", "ir"},
    "schedules": {"schedules", "ir"},
    "backend": {"backend", "ir"},
    "taskmap": set(ROOMS),
}
LONGEST = 600
MOST_FILES = 25
MOST_HOMES = 2
SHOWN_BY = {("taskmap.ir.nodes", "taskmap.ir.printer")}
"""Methods that show a value load what draws it, which stands above the value."""


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def package_of(path: Path) -> str:
    """The dotted package in which the file's relative imports are resolved."""
    parts = path.relative_to(ROOT).parts[:-1]
    return ".".join(parts if parts[0] == "taskmap" else ("taskmap", *parts))


def imports(source: str, package: str) -> Iterator[str]:
    """Every module that the source imports, as a dotted name; `from a import b` counts as a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            # Only what stands before the first {...} of an f-string is known here.
            name = node.args[0]
            head = name.values[0] if isinstance(name, ast.JoinedStr) else name
            if isinstance(head, ast.Constant):
                yield str(head.value)


def room_of(module: str) -> str | None:
    """The top-level package that a dotted name belongs to, or None for a third-party one."""
    parts = module.split(".")
    if parts[0] != "taskmap":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS[1:] else "taskmap"


def wrong_imports(source: str, room: str, package: str) -> list[str]:
    """The imports by which a file of ``room`` violates the import rules or names a package without "taskmap."."""
    names = list(imports(source, package))
    bare = [name for name in names if name.split(".")[0] in ROOMS[1:]]
    allowed = MAY_IMPORT.get(room, set(ROOMS))
    return bare + [name for name in names if (target := room_of(name)) is not None and target not in allowed]


@pytest.mark.parametrize("room", [*ROOMS, *OUTSIDE])
def test_arrows(room: str) -> None:
    found = {}
    for path in files(room):
        if wrong := wrong_imports(path.read_text(encoding="utf-8"), room, package_of(path)):
            found[str(path.relative_to(ROOT))] = wrong
    assert not found


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("ir", "import taskmap"),
        ("ir", "from taskmap.graph import Graph"),
        ("graph", "from taskmap import schedules"),
        ("graph", "from taskmap import Options"),
        ("graph", "from ..backend.cpu import codegen"),
        ("graph", "import graph.ops"),
        ("schedules", "def f():\n    import taskmap.backend.store.objects"),
        ("backend", "from taskmap.options import Options"),
        ("backend", "import_module('taskmap.graph')"),
        ("backend", "importlib.import_module(f'taskmap.schedules.{name}')"),
        ("taskmap", "from ir import repeat"),
        ("tests", "import backend"),
    ],
)
def test_a_wrong_arrow_is_noticed(room: str, source: str) -> None:
    assert wrong_imports(source, room, f"taskmap.{room}")


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("ir", "from taskmap.ir.errors import TaskmapError\nfrom . import source\nimport numpy"),
        ("graph", "from taskmap import ir\nfrom ..ir.types import f32\nfrom taskmap.graph.ops import add"),
        ("taskmap", "import taskmap\nfrom taskmap.graph import Graph\nfrom taskmap.options import Options"),
    ],
)
def test_a_right_arrow_is_accepted(room: str, source: str) -> None:
    assert wrong_imports(source, room, f"taskmap.{room}") == []


def between_devices(source: str, package: str) -> list[str]:
    """The imports of one device's schedules by the other's, or of either by shared files."""
    folder = package.removeprefix("taskmap.schedules.").split(".")[0]
    others = {"cpu": ("cuda",), "cuda": ("cpu",), "common": ("cpu", "cuda")}[folder]
    barred = tuple(f"taskmap.schedules.{device}." for device in others)
    return [name for name in imports(source, package) if f"{name}.".startswith(barred)]


@pytest.mark.parametrize("folder", ["cpu", "cuda", "common"])
def test_devices_share_schedules_through_common_only(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in files(f"schedules/{folder}")
        if (wrong := between_devices(path.read_text(encoding="utf-8"), package_of(path)))
    }
    assert not found


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("cuda", "from taskmap.schedules.cpu.rows import schedule_rows"),
        ("cuda.matmul", "from ...cpu import rows"),
        ("cpu", "import taskmap.schedules.cuda"),
        ("common", "from taskmap.schedules import cpu"),
    ],
)
def test_an_import_between_devices_is_noticed(folder: str, source: str) -> None:
    assert between_devices(source, f"taskmap.schedules.{folder}")


def test_the_foundation_needs_only_the_standard_library_and_numpy() -> None:
    known = {*sys.stdlib_module_names, "numpy", "taskmap"}
    foreign = {
        (str(path.relative_to(ROOT)), name)
        for path in files("ir")
        for name in imports(path.read_text(encoding="utf-8"), package_of(path))
        if name.split(".")[0] not in known
    }
    assert not foreign


def in_fresh_python(code: str) -> dict[str, object]:
    """The value of `result` after running the code in a process of its own, from the root of the checkout."""
    script = f"import json, sys, time\nresult = {{}}\n{code}\nprint(json.dumps(result))"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    result: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return result


def test_import_is_light() -> None:
    code = """
start = time.perf_counter()
import taskmap
result["seconds"] = time.perf_counter() - start
result["heavy"] = sorted({"torch", "onnx", "cuda", "numpy", "tqdm"} & set(sys.modules))
"""
    runs = [in_fresh_python(code) for _ in range(5)]
    assert runs[0]["heavy"] == []
    # The best of five: the others were slow for reasons that are not ours.
    assert min(float(str(run["seconds"])) for run in runs) < 0.1


def test_the_foundation_loads_no_framework() -> None:
    code = (
        "import taskmap.ir\ntaskmap.ir.repeat\nresult['heavy'] = sorted({'torch', 'onnx', 'cuda'} & set(sys.modules))"
    )
    assert in_fresh_python(code)["heavy"] == []


@pytest.fixture
def installed() -> None:
    try:
        metadata.distribution("taskmap")
    except metadata.PackageNotFoundError:
        pytest.skip("taskmap is not installed: a bare checkout has no entry points")


@pytest.mark.usefixtures("installed")
def test_the_backend_is_found_by_name_without_importing_taskmap() -> None:
    code = """
from importlib.metadata import entry_points
import torch._dynamo
result["value"] = [entry.value for entry in entry_points(group="torch_dynamo_backends", name="taskmap")]
result["listed"] = "taskmap" in torch._dynamo.list_backends()
result["imported"] = "taskmap" in sys.modules
"""
    expected = {"value": ["taskmap.torch_backend:compile_fx"], "listed": True, "imported": False}
    assert in_fresh_python(code) == expected


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("group", "name"), [("torch_dynamo_backends", "taskmap"), ("console_scripts", "taskmap")])
def test_entry_points_lead_somewhere(group: str, name: str) -> None:
    (entry,) = metadata.entry_points(group=group, name=name)
    assert callable(entry.load())


@pytest.mark.parametrize("package", ["taskmap", "taskmap.ir"])
def test_public_names(package: str) -> None:
    """The names a type checker sees, the names that load lazily and the names listed are the same, and all load."""
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    lines = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {str(alias.asname): str(node.module) for node in lines for alias in node.names}
    assert typed == module._HOME
    assert {name for name in module.__all__ if not name.startswith("__")} == set(typed)
    for name in typed:
        assert getattr(module, name) is getattr(import_module(module._HOME[name]), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


@pytest.mark.parametrize("folder", [*ROOMS, *OUTSIDE])
def test_files_are_small(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files(folder)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_all_that_stands_in_the_rooms_is_installed() -> None:
    """A folder without __init__.py, or a data file of a kind that setup.py does not pack, would be missing from a
    wheel."""
    data = {".h", ".c", ".cuh", ".css", ".js", ".typed"}
    lost = []
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()):
        if "__pycache__" in path.parts:
            continue
        if path.suffix not in {".py", *data} or not (path.parent / "__init__.py").exists():
            lost.append(str(path.relative_to(ROOT)))
    assert lost == []


RELATIVE = re.compile(r"(what|whether|where|which|how|who|whose|when|why)\b", re.IGNORECASE)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The line and text of the docstring of the module and of each class, function and variable in ``source``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for before, after in pairwise(node.body):
                if isinstance(before, (ast.Assign, ast.AnnAssign)) and isinstance(after, ast.Expr):
                    if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                        yield after.lineno, after.value.value


def test_the_check_of_docstrings_finds_relative_words() -> None:
    source = (
        '"""Whose."""\n'
        'def f():\n    """how many."""\n'
        'class C:\n    """However, no."""\n'
        'def g():\n    """``where``: a place."""\n'
        'limit: int = 3\n"""Why three."""\nend = 1\nprint(end)\n'
    )
    found = sorted(text for _, text in docstrings(source) if RELATIVE.match(text))
    assert found == ["Whose.", "Why three.", "how many."]


def test_no_docstring_begins_with_a_relative_word() -> None:
    """A docstring states a fact or an action: "The size of a tile", not "How large a tile is"."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files(*ROOMS, *OUTSIDE)
        for line, text in docstrings(path.read_text(encoding="utf-8"))
        if RELATIVE.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", ROOMS[1:])
def test_the_rooms_are_links(room: str) -> None:
    assert is_link_to_room(ROOT, room)


def is_link_to_room(top: Path, room: str) -> bool:
    """True if ``taskmap/ROOM`` in the checkout ``top`` is a relative link to its ``ROOM``."""
    link = top / "taskmap" / room
    return link.is_symlink() and os.readlink(link) == f"../{room}" and link.is_dir()


def test_what_is_no_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "taskmap" / "copied").mkdir(parents=True)
    for room in ("copied", "absolute", "swapped"):
        (tmp_path / room).mkdir()
    (tmp_path / "taskmap" / "absolute").symlink_to(tmp_path / "absolute")
    (tmp_path / "taskmap" / "swapped").symlink_to("../copied")
    (tmp_path / "taskmap" / "lost").symlink_to("../lost")
    assert not any(is_link_to_room(tmp_path, room) for room in ("copied", "absolute", "swapped", "lost", "absent"))


def crowded(paths: Iterable[Path]) -> dict[str, int]:
    """Folders with more Python files than a reader takes in, and their number."""
    counts: dict[str, int] = defaultdict(int)
    for path in paths:
        counts[path.parent.as_posix()] += 1
    return {folder: count for folder, count in counts.items() if count > MOST_FILES}


def repeating(paths: Iterable[Path]) -> list[str]:
    """Files that repeat the name of their folder as a prefix."""
    return [path.as_posix() for path in paths if path.stem.startswith(f"{path.parent.name}_")]


def own_files() -> list[Path]:
    return [path.relative_to(ROOT) for path in modules().values()]


def test_no_folder_is_crowded() -> None:
    outside = [path.relative_to(ROOT) for folder in OUTSIDE for path in files(folder)]
    assert crowded([*own_files(), *outside]) == {}
    assert crowded([Path(f"ir/f{i}.py") for i in range(MOST_FILES + 1)]) == {"ir": MOST_FILES + 1}
    assert crowded([Path(f"ir/f{i}.py") for i in range(MOST_FILES)]) == {}


def test_no_file_repeats_its_folder() -> None:
    assert repeating(own_files()) == []
    assert repeating([Path("taskmap/archive/archive_json.py"), Path("ir/archive.py")]) == [
        "taskmap/archive/archive_json.py"
    ]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The imports of our modules, those for types and lazy ones among them."""
    found = import_graph()
    for module, other in SHOWN_BY:
        assert other in found[module], f"{module} no longer loads {other}: take it out of SHOWN_BY"
        found[module].discard(other)
    return found


def unnamed(card: str, contents: Iterable[str]) -> list[str]:
    """The modules and folders of a package that its card does not name: in full, or by a pattern like *_gradients."""
    names, patterns = set(re.findall(r"\w+", card)), re.findall(r"\*\w+", card)
    return [name for name in contents if name not in names and not any(fnmatch(name, p) for p in patterns)]


def test_every_card_names_what_its_folder_holds() -> None:
    cards = [path for path in modules().values() if path.name == "__init__.py"]
    assert len(cards) > 50
    for path in cards:
        card = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        inside = [p.stem for p in path.parent.glob("*.py") if not p.stem.startswith("__")]
        inside += [p.parent.name for p in path.parent.glob("*/__init__.py") if not p.parent.is_symlink()]
        assert unnamed(card, inside) == [], path
        assert not inside or "mport" in card, f"{path} does not say what it may import"


def test_a_module_that_a_card_leaves_out_is_noticed() -> None:
    assert unnamed("card: one, *_two", ["one", "a_two", "three"]) == ["three"]


def test_functions_that_load_late_have_types() -> None:
    """Beside each ``name = lazily("module", "function")`` stands the import of the same function for types."""
    count = 0
    for module, path in modules().items():
        late, typed = late_and_typed(ast.parse(path.read_text(encoding="utf-8")))
        assert late == {name: typed.get(name) for name in late}, module
        count += len(late)
    assert count > 10
    assert late_and_typed(ast.parse('a = lazily("m", "f")')) == ({"a": ("m", "f")}, {})


def test_no_circles_between_files(graph: dict[str, set[str]]) -> None:
    assert circles(graph) == []


def test_a_circle_is_noticed(graph: dict[str, set[str]]) -> None:
    planted = {module: set(others) for module, others in graph.items()}
    planted["taskmap.ir.expressions"].add("taskmap.ir.construct")
    assert circles(planted) == [["taskmap.ir.construct", "taskmap.ir.expressions"]]
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("if TYPE_CHECKING:\n    from taskmap.ir.nodes import Kernel", ["taskmap.ir.nodes.Kernel"]),
        ("def f():\n    import taskmap.graph.nodes", ["taskmap.graph.nodes"]),
        ("from . import nodes\nfrom ..ir import types", ["taskmap.ir.nodes", "taskmap.ir.types"]),
        ("f = lazily('taskmap.ir.printer', 'print_kernel')", ["taskmap.ir.printer"]),
        ("import taskmap\nfrom taskmap import __version__", []),
    ],
)
def test_every_import_counts(source: str, names: list[str]) -> None:
    assert list(imported(source, "taskmap.ir.builder", is_package=False)) == names


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_imports_go_down(package: str, graph: dict[str, set[str]]) -> None:
    parts = units(graph, package)
    assert upward(parts, FLOORS[package]) == []
    assert {name for floor in FLOORS[package] for name in floor.split()} == set(parts)


def test_every_package_with_folders_has_floors(graph: dict[str, set[str]]) -> None:
    packages = {module_of(path) for path in modules().values() if path.name == "__init__.py"}
    assert {p for p in packages if any(part.endswith("/") for part in units(graph, p))} == set(FLOORS)


def test_an_import_that_goes_up_is_noticed() -> None:
    floors = ("errors", "types algebra/", "nodes")
    assert upward({"nodes": {"types", "algebra/"}, "types": {"errors"}, "errors": set()}, floors) == []
    assert upward({"types": {"nodes"}}, floors) == ["types imports nodes"]
    assert upward({"types": {"algebra/"}}, floors) == ["types imports algebra/"]
    assert upward({"stranger": set()}, floors) == ["stranger has no floor"]


def homes(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Public classes that stand in more files than a reader keeps apart, with the files."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, source in sources:
        for kind in {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}:
            found[kind].append(name)
    return {kind: files for kind, files in found.items() if len(files) > MOST_HOMES and not kind.startswith("_")}


def test_a_class_name_means_one_or_two_things() -> None:
    assert homes((module, path.read_text(encoding="utf-8")) for module, path in modules().items()) == {}
    planted = [(name, "class Block: ...") for name in "abc"]
    assert homes(planted) == {"Block": ["a", "b", "c"]}
    assert homes(planted[:2]) == {}
