"""The kernel store of the whole run for the simulator's tests: its engine is built once."""

from pathlib import Path

import pytest

from taskmap.backend.store.objects import KernelStore


@pytest.fixture(scope="session")
def store(shared_cache: Path) -> KernelStore:
    return KernelStore(shared_cache)
