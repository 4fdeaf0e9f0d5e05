"""What all tests share: golden files, a kernel store of their own, and hypothesis without a clock."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# A property test that compiles has no honest deadline: the machine that runs it is shared.
settings.register_profile("taskmap", deadline=None, print_blob=True)
settings.load_profile("taskmap")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing with them"
    )


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
    """Every test uses the run's own kernel store, never the user's."""
    monkeypatch.setenv("TASKMAP_CACHE_DIR", str(shared_cache))


@pytest.fixture
def cache_dir(kernel_store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel store for this test alone, for tests that look into it or count what is compiled."""
    folder = tmp_path / "taskmap_cache"
    monkeypatch.setenv("TASKMAP_CACHE_DIR", str(folder))
    return folder
