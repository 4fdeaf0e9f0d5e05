"""Tuning by a Dask cluster, one of whose workers dies in the middle."""

import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.tuning.test_tune import FIRST, tuned

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")  # a cluster that loses a worker has much to say


def test_a_cluster_measures_though_a_worker_dies(tmp_path: Path) -> None:
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        victim = Thread(target=_kill_one, args=(cluster,))
        victim.start()
        found = tuned(tmp_path, executor=client.get_executor(pure=False))
        victim.join()
    assert set(found.times) == set(FIRST)
    assert found.failures == {}


def _kill_one(cluster: Any) -> None:
    time.sleep(0.7)
    next(iter(cluster.workers.values())).process.process._process.kill()
