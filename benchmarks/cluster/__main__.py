"""Studies of policies on simulated clusters; only `replay` needs a cluster, root, and a machine of its own.

examples:
  python -m benchmarks.cluster study                         all scenarios; some minutes on two cores
  python -m benchmarks.cluster study --quick                 small ones, in seconds, to try things out
  python -m benchmarks.cluster study --only shared,tiers --seed 100
  python -m benchmarks.cluster study --go-on                 after a stop, with the same code
  python -m benchmarks.cluster study --list
  python -m benchmarks.cluster derive my-jobs.csv my-throughputs.csv >my.json
  python -m benchmarks.cluster study --only shared --parameters my.json --output build/mine
  python -m benchmarks.cluster derive philly-jobs.csv.gz throughputs.csv.gz --compare
  python -m benchmarks.cluster replay --devices 64 --hours 12 --compress 120
  python -m benchmarks.cluster replay --policies attained_service --devices 64 --hours 4 --compress 30

Names of contenders have commas, so separate several of them by semicolons.
`study` writes a picture and a table for each scenario, and every measure of each run, when it is done, into the book:
OUTPUT/studies.json, or with --docs the one beside the page. Scenarios and contenders that are not played stay in the
book as they are, and count for the page's verdict.
`derive` prints the generator's parameters from a trace; with --compare the distance of what it draws from the trace.
`replay` plays a workload to a real Kueue and writes OUTPUT/replay.json: how far the simulator is from it. With
--policies the controller is real, too, and plans for Jobs on fake nodes: OUTPUT/replay-NAMES.json.

exit codes: 0 done, 1 a run failed, 2 wrong arguments or files
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import compare, derive, pages, plots, traces
from .book import BOOK, Book
from .study import BASE, CONTENDERS, SCENARIOS, Scenario, play_all, quick

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "studies"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    study = commands.add_parser("study", help="run the studies")
    study.add_argument("--only", default="", metavar="SCENARIO,...", help="run these only")
    study.add_argument("--with", default="", dest="contenders", metavar="NAME,...", help="run these contenders only")
    study.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="put it into FOLDER/studies.md, too; FOLDER has the book then"
    )
    study.add_argument("--quick", action="store_true", help="64 devices, two days, two seeds")
    study.add_argument("--seed", type=int, default=1, metavar="N", help="the first seed (default 1)")
    study.add_argument("--seeds", type=int, metavar="N", help="how many seeds, for all scenarios")
    study.add_argument("--processes", type=int, metavar="N", help="default: one for each core")
    study.add_argument("--parameters", type=Path, metavar="FILE", help="of the generator, as `derive` prints them")
    study.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER", help="default build/studies")
    study.add_argument("--go-on", action="store_true", help="play only what the book, studies.json, lacks")
    study.add_argument("--list", action="store_true", help="list scenarios and contenders, and run nothing")
    derived = commands.add_parser("derive", help="the generator's parameters from a trace")
    derived.add_argument("jobs", type=Path, metavar="JOBS", help="CSV, plain or gzip")
    derived.add_argument("throughputs", type=Path, metavar="THROUGHPUTS", help="CSV, plain or gzip")
    derived.add_argument("--compare", action="store_true", help="print distances of drawn workloads from the trace")
    replayed = commands.add_parser("replay", help="compare the simulator with a real Kueue")
    replayed.add_argument("--devices", type=int, default=64, metavar="N", help="a multiple of 8 (default 64)")
    replayed.add_argument("--hours", type=float, default=12.0, metavar="H", help="in which jobs arrive (default 12)")
    replayed.add_argument("--load", type=float, default=1.0, metavar="X", help="demand / device time (default 1)")
    replayed.add_argument("--seed", type=int, default=1, metavar="N")
    replayed.add_argument("--compress", type=float, default=60.0, metavar="X", help="seconds in a second (default 60)")
    replayed.add_argument("--plain", action="store_true", help="without the hold; scripts save every 30 minutes")
    replayed.add_argument(
        "--policies", metavar="NAME,...", help="with the real controller and these policies of its planner, or none"
    )
    replayed.add_argument("--limit", type=float, default=7200.0, metavar="SECONDS", help="longest time (default 7200)")
    replayed.add_argument("--output", type=Path, default=OUTPUT, metavar="FOLDER", help="default build/studies")
    arguments = parser.parse_args(argv)
    for name in ("seeds", "processes"):
        value = getattr(arguments, name, None)
        if value is not None and value < 1:
            study.error(f"argument --{name}: {value} is less than 1")
    return arguments


def select(only: str) -> list[Scenario]:
    """:raises ValueError: an unknown name; the message lists the known ones"""
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"--only = {','.join(unknown)}: no such scenario; there are {', '.join(known)}")
    return [scenario for scenario in SCENARIOS if not wanted or scenario.name in wanted]


def chosen(scenarios: Sequence[Scenario], names: str) -> list[Scenario]:
    """With those of the named contenders that each scenario has, and the one that all are compared with.

    :raises ValueError: an unknown name; the message lists the known ones
    """
    wanted = [name.strip() for name in names.split(";" if ";" in names else ",") if name.strip()]
    unknown = [name for name in wanted if name not in CONTENDERS]
    if unknown:
        raise ValueError(f"--with = {','.join(unknown)}: no such contender; there are {'; '.join(CONTENDERS)}")
    if not wanted:
        return list(scenarios)
    return [replace(one, contenders=tuple(n for n in one.names() if n in wanted or n == BASE)) for one in scenarios]


def study(arguments: argparse.Namespace) -> int:
    scenarios = chosen(select(arguments.only), arguments.contenders)
    if arguments.list:
        print("\n".join(f"{one.name:14} {one.about}" for one in scenarios) + "\n\n" + "\n".join(CONTENDERS))
        return 0
    if arguments.quick:
        scenarios = quick(scenarios)
    if arguments.seeds:
        scenarios = [one.with_seeds(arguments.seeds) for one in scenarios]
    if arguments.parameters:
        given = _given(arguments.parameters)
        scenarios = [replace(one, given=given) for one in scenarios]
    if arguments.docs:
        pages.check(arguments.docs, scenarios)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    book = Book((arguments.docs or arguments.output) / BOOK)
    try:
        play_all(scenarios, arguments.seed, say, arguments.processes, book, arguments.go_on)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write(arguments.output, scenarios, book)
    say(f"written to {arguments.output}")
    if arguments.docs:
        pages.put(arguments.docs, scenarios, book)
    return 0


def _given(path: Path) -> derive.Parameters:
    """:raises ValueError, OSError: the file has no parameters"""
    try:
        return derive.loaded(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def replay(arguments: argparse.Namespace) -> int:
    from localcluster.errors import LocalClusterError

    from . import replay as played

    if arguments.policies is not None:
        return replay_live(arguments)
    from .alone import kueue_alone

    made = played.plan(
        arguments.devices, arguments.hours, arguments.load, arguments.seed, arguments.compress, arguments.plain
    )
    try:
        expected = played.simulated(made)  # first: a plan without an end is no reason to start a cluster
        ends_s = max(one.finished_at or 0.0 for one in expected) / made.compress
        say_now(f"{len(made.jobs)} jobs; the simulator's are done after {ends_s:.0f} s of this compressed time")
        with kueue_alone(say_now) as on:
            real = played.replay(on.kube, on.apply, made, arguments.limit, say_now)
            print(json.dumps(played.write(arguments.output, real, expected, made), indent=1), flush=True)
    except (RuntimeError, LocalClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if real.trouble:
        print(f"error: replay: {real.trouble}; {arguments.output / 'replay.json'} has what was done", file=sys.stderr)
    return 1 if real.trouble else 0


def replay_live(arguments: argparse.Namespace) -> int:
    """Raises ValueError: arguments of which no replay can be made."""
    from kueue_integration.errors import SingularityError
    from localcluster.errors import LocalClusterError

    from .live import fit, run, scale
    from .replay import plan

    if arguments.plain:
        raise ValueError("--plain: with --policies jobs have the hold; leave one of the two out")
    if arguments.limit <= 0:
        raise ValueError(f"--limit = {arguments.limit:g}: give a positive number of seconds")
    made = plan(arguments.devices, arguments.hours, arguments.load, arguments.seed, arguments.compress, False)
    planned = scale.planned(arguments.policies, made.compress)
    try:
        ends_s = max(one.finished_at or 0.0 for one in run.expected(made, planned, fit.GUESS).jobs)
        say_now(f"{len(made.jobs)} jobs; the simulator's are done after about {ends_s:.0f} s of this compressed time")
        real = run.replay(made, planned, arguments.limit, arguments.output, say_now)
        print(json.dumps(run.write(arguments.output, real, made, planned), indent=1), flush=True)
    except (RuntimeError, SingularityError, LocalClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if real.trouble:
        print(f"error: replay: {real.trouble}; {arguments.output} has what was done", file=sys.stderr)
    return 1 if real.trouble else 0


def say_now(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(output: Path, scenarios: Sequence[Scenario], book: Book) -> None:
    """Raises OSError."""
    output.mkdir(parents=True, exist_ok=True)
    for scenario in scenarios:
        found, name = book.found(scenario.name, scenario.names()), scenario.name.replace(" ", "-")
        title = pages.title(scenario)
        (output / f"{name}.svg").write_text(plots.picture(title, found, BASE))
        text = f"{title}, {scenario.seeds} seeds\n\n{plots.table(found)}\n\n{plots.changes(found, BASE)}\n"
        (output / f"{name}.md").write_text(text)
        print(text)


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    try:
        if arguments.command == "study":
            return study(arguments)
        if arguments.command == "replay":
            return replay(arguments)
        jobs, speeds = traces.read_jobs(arguments.jobs), traces.read_throughputs(arguments.throughputs)
        made = derive.parameters(jobs, speeds)
        print(compare.report(jobs, speeds, made) if arguments.compare else derive.dumped(made), end="")
        return 0
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
