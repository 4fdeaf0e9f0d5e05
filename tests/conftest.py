"""Shared by all tests: golden files, a kernel store of their own, seeded inputs, and hypothesis without a clock."""

import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

# A property test has no honest deadline, nor has the making of its examples: the machine that runs it is shared.
settings.register_profile("taskmap", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("taskmap"), derandomize=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing with them"
    )
    parser.addoption(
        "--long", action="store_true", help="run what takes long too, and every program at independent symbolic sizes"
    )
    parser.addoption("--seed", type=int, help="draw other random inputs than those of every run")


def pytest_configure(config: pytest.Config) -> None:
    """Every run draws the same inputs, so that failures can be reproduced; `--seed N` draws new ones."""
    settings.load_profile("repeatable" if config.getoption("--seed") is None else "taskmap")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `long` run only with `--long`."""
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="takes long: give --long"))


@pytest.fixture(autouse=True)
def independent_sizes(request: pytest.FixtureRequest, kernel_store: None) -> Iterator[None]:
    """With `--long`, the programs that a test compares with eager then run at independent symbolic sizes."""
    if not request.config.getoption("--long"):
        yield
        return
    independent = pytest.importorskip("tests.independent")
    with independent.noting() as programs:
        yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program in programs:
            independent.check_independent(program)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Random inputs depend on the run's seed and on the test's name, not on which tests ran before."""
    seed = crc32(f"{request.config.getoption('--seed')} {request.node.nodeid}".encode())
    random.seed(seed)
    for name, seeding in (("numpy", "random.seed"), ("torch", "random.manual_seed")):
        if name in sys.modules:
            attrgetter(seeding)(sys.modules[name])(seed)


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """A test may set how PyTorch multiplies on GPUs: afterwards PyTorch's defaults are restored."""
    torch = pytest.importorskip("torch")
    with torch.backends.__allow_nonbracketed_mutation():  # which torch.testing forbids all that are in its process
        yield
        torch.set_float32_matmul_precision("highest")  # this and the next stand for each other in part
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = False


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with the file tests/golden/<name>, or writes it under --update-golden."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"there is no golden file {name}: write it with pytest --update-golden, and read it"
        assert text == path.read_text(encoding="utf-8"), f"{name} differs: if that is right, pytest --update-golden"

    return compare


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One kernel store for the whole run, all its workers included: the same kernel is compiled once."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return run / "taskmap_cache"


@pytest.fixture(autouse=True)
def kernel_store(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test uses the kernel store of the test run, never the user's."""
    monkeypatch.setenv("TASKMAP_CACHE_DIR", str(shared_cache))


@pytest.fixture
def absent_cache_dir(kernel_store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a kernel store for this test only; the folder does not exist yet."""
    folder = tmp_path / "taskmap_cache"
    monkeypatch.setenv("TASKMAP_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def cache_dir(absent_cache_dir: Path, shared_cache: Path) -> Path:
    """An empty kernel store for this test only, for tests that inspect it or count compilations. It contains
    the verdicts on compilers: their trial takes seconds, in each process."""
    if (shared_cache / "compilers").exists():
        absent_cache_dir.mkdir(mode=0o700)
        shutil.copytree(shared_cache / "compilers", absent_cache_dir / "compilers")
    return absent_cache_dir
