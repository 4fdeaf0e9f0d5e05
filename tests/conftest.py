"""What all tests share: golden files, a kernel store of their own, and hypothesis without a clock."""

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


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kernel store for this test alone: nothing is found from another test or an earlier run."""
    folder = tmp_path / "taskmap_cache"
    monkeypatch.setenv("TASKMAP_CACHE_DIR", str(folder))
    return folder
