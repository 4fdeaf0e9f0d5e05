"""Tuning matrix products on a Dask cluster, one of whose workers dies in between.

pip install taskmap[dask]
python examples/tune_on_a_cluster.py

With a scheduler's address as its argument, the example uses that cluster instead of a local one. Whatever a worker
measures, or leaves undone when it dies, all records go to this machine's tuning cache, where compilations find them.
"""

import sys
import threading
import time

from distributed import Client, LocalCluster

from taskmap import Options
from taskmap.ir.types import f32
from taskmap.schedules.cpu.matmul.problem import MatmulProblem
from taskmap.targets.choose import host_target
from taskmap.trust.compiler import trusted_toolchain
from taskmap.tuning.database import Database
from taskmap.tuning.here import conditions, database_path
from taskmap.tuning.job import Setting
from taskmap.tuning.tune import Budget, tune

PROBLEMS = [MatmulProblem(1, 64, 256, k, (f32, f32, f32)) for k in (128, 256)]
THREADS = 1


def main(address: str | None) -> None:
    """Tune every problem and print the best configuration of each."""
    cluster = None if address else LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)  # pyright: ignore[reportArgumentType]
    with Client(address or cluster) as client:
        if cluster is not None:
            threading.Thread(target=kill_one, args=(cluster,), daemon=True).start()
        target = host_target(Options(threads=THREADS), THREADS)
        here = conditions(trusted_toolchain(), THREADS)
        database = Database(database_path())
        for problem in PROBLEMS:
            executor = client.get_executor(pure=False)
            found = tune(problem, target, Setting(THREADS), here, database, Budget(seconds=30), executor=executor)
            print(f"{found.operator}: {found.best}, {len(found.times)} of {found.total} measured")
        database.close()
    if cluster is not None:
        cluster.close()


def kill_one(cluster: LocalCluster) -> None:
    """End a worker in the middle of its work, without notice."""
    time.sleep(1)
    next(iter(cluster.workers.values())).process.process._process.kill()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
