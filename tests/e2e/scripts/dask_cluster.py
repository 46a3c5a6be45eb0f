"""A dask LocalCluster with processes in each rank works until $OUTPUT/stop is there: number, result, when."""

import os
import time
from pathlib import Path

from distributed import Client, LocalCluster

RANK = os.environ["RANK"]
OUTPUT = Path(os.environ["OUTPUT"])


def square(number):
    return number * number % 101


def main():
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
    number = 0
    with Client(cluster) as client, (OUTPUT / f"lines-{RANK}").open("a", buffering=1) as out:
        while not (OUTPUT / "stop").exists():
            results = client.gather(client.map(square, range(number, number + 4), pure=False))
            out.write(f"{number} {sum(results)} {time.time()}\n")
            number += 1
            time.sleep(0.05)
    cluster.close()


if __name__ == "__main__":
    main()
