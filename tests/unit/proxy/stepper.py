"""A rank without torch: in step with the other one through files, stopped at the agent's own boundary; it stands still
where the test tells it to.

The test makes `/shared/RANK/hold-POINT`; the rank says that it is there by `at-POINT`, and goes on when the first is
gone. Both end once there is `/shared/end`.
"""

import os
import time
from pathlib import Path

from _singularity.agent import boundary, freeze, groups, membership

SHARED = Path("/shared")
OWN, OTHER = int(os.environ["RANK"]), 1 - int(os.environ["RANK"])


def point(name):
    if (SHARED / f"{OWN}/hold-{name}").exists():
        (SHARED / f"{OWN}/at-{name}").touch()
        while (SHARED / f"{OWN}/hold-{name}").exists():
            time.sleep(0.01)


def at(name, stock):
    def held(*arguments):
        point(name)
        return stock(*arguments)

    return held


def meet(step):
    """As a collective does. A rank's file is as long as it has made steps."""
    with open(SHARED / f"step-{OWN}", "ab") as file:
        file.truncate(step)
    while not ((SHARED / f"step-{OTHER}").exists() and (SHARED / f"step-{OTHER}").stat().st_size >= step):
        if (SHARED / f"ended-{OTHER}").exists():
            return
        time.sleep(0.001)


# Other places than boundaries are compared through the script's own store, and there is none.
boundary.PATIENCE_S = boundary.LONGEST_PATIENCE_S = boundary.NO_STEPS_S = 600.0
groups.drop = at("freeze", groups.drop)
freeze._resume = at("resume", freeze._resume)
rank = membership.claim()
log = open("numbers", "a", buffering=1)  # noqa: SIM115
n = 0
while not (SHARED / "end").exists():
    n += 1
    log.write(f"{n} {rank.count + 1}\n")
    point("request")
    meet(n)
    rank.step()
    time.sleep(0.005)
(SHARED / f"ended-{OWN}").touch()
log.write("end\n")
