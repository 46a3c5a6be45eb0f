"""Airflow's own KubernetesStartKueueJobOperator and ours in the same scenarios, on a real Airflow and a real cluster.

Starts a cluster and an Airflow of its own. Plays every scenario with all contenders at the same time (each with a
queue, a namespace and a user of its own). Prints the table, writes build/anchor/anchor.{json,md}, takes all down again.
With --only, rows of an earlier run of the same versions stay in these files; each says when it was played.

examples:
  python -m benchmarks.anchor
  python -m benchmarks.anchor --only preemption,cleared

exit codes: 0 played (whoever did better), 1 it could not be played, 2 wrong arguments, 130 interrupted
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kueue_integration.errors import SingularityError
from localcluster import cluster
from localcluster.config import check_name
from localcluster.demo.interrupts import first_interrupt
from localcluster.demo.progress import Progress
from localcluster.demo.stage import CHECKOUT, Stage
from localcluster.errors import LocalClusterError

from . import ground, report
from .play import Play, Say
from .record import Outcome, judge
from .scenarios import CONTENDERS, SCENARIOS, Scenario, contenders

OUTPUT = CHECKOUT / "build" / "anchor"
INTERRUPTED = 130


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.anchor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="SCENARIO,...", help="play these only")
    parser.add_argument("--list", action="store_true", help="list the scenarios and play none")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER", help="default build/anchor")
    parser.add_argument("--cluster", default="anchor", metavar="NAME", help="of the cluster that is made for it")
    parser.add_argument("--keep", action="store_true", help="use the cluster if it is there, and leave it up")
    arguments = parser.parse_args(argv)
    try:
        check_name(arguments.cluster)
        arguments.scenarios = select(arguments.only)
    except (ValueError, LocalClusterError) as error:
        parser.error(str(error))
    return arguments


def select(only: str) -> list[Scenario]:
    """:raises ValueError: an unknown name; the message lists the known ones"""
    wanted = [name for name in only.split(",") if name]
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"--only = {','.join(unknown)}: no such scenario; there are {', '.join(known)}")
    return [scenario for scenario in SCENARIOS if not wanted or scenario.name in wanted]


def play_all(on: Stage, scenarios: Sequence[Scenario], output: Path, say: Say) -> dict[str, dict[str, Outcome]]:
    """One scenario after the other, all contenders at once. What is there is written after each."""
    results = {} if len(scenarios) == len(SCENARIOS) else report.read(output)
    for number, scenario in enumerate(scenarios, 1):
        say(f"=== {number} of {len(scenarios)}: {scenario.title}")
        stop = threading.Event()
        with ThreadPoolExecutor(len(CONTENDERS)) as pool:
            plays = {c.name: pool.submit(Play(on, scenario, c, say, stop).run) for c in contenders(scenario)}
            try:
                results[scenario.name] = {name: judge(made.result()) for name, made in plays.items()}
            except BaseException:
                stop.set()  # the pool waits for the others
                raise
        report.write(output, results)
    return results


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:18} {scenario.title}: {scenario.asks}")
        return 0
    say = Progress().say
    with tempfile.TemporaryDirectory(prefix="anchor-") as made, first_interrupt() as no_more:
        folder = Path(made)
        (folder / "dags").mkdir()
        environment = {**ground.environment(folder), "PYTHONPATH": str(CHECKOUT)}
        on = Stage(arguments.cluster, say, folder / "dags", environment)
        try:
            if not arguments.keep:
                cluster.down(arguments.cluster, progress=say)  # of a run that was killed
            on.up()
            ground.prepare(on, folder, folder / "dags")
            results = play_all(on, arguments.scenarios, arguments.output, say)
        except (SingularityError, LocalClusterError, OSError) as error:
            say(f"FAILED: {error}")
            on.save_evidence(arguments.output / "logs")
            return 1
        except KeyboardInterrupt:
            say("interrupted: taking down what was started")
            return INTERRUPTED
        finally:
            no_more()
            on.stop_airflow()  # its Dags lie in the folder that goes now
            on.close(arguments.keep)
    print(f"\n{report.table(results)}\n\n{report.played(results)}")
    print(f"\nwritten to {arguments.output}/anchor.json and anchor.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
