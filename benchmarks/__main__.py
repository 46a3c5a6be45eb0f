"""Measure figures and write build/bench/figures.json.

examples:
  python -m benchmarks --list
  python -m benchmarks --only boundary_hook_us,steady_overhead_pct
  python -m benchmarks --quick                       everything, small
  python -m benchmarks --only fence_admission_ratio --workloads 15000 --limit 240
  python -m benchmarks --table                       the last figures as a markdown table

exit codes: 0 measured (whether aims are reached or not), 1 a measurement failed, 2 wrong arguments
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import catalogue, table
from .model import Options, figure, reaches

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "bench" / "figures.json"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="KEY,...", help="measure these figures only")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size: to try things out")
    parser.add_argument("--workloads", type=int, metavar="N", help="size of the admission figures (default 15000)")
    parser.add_argument("--evictions", type=int, metavar="N", help="size of the eviction figures (default 1000)")
    parser.add_argument("--nodes", type=int, metavar="N", help="fake nodes of both (default 1000)")
    parser.add_argument("--size", type=float, metavar="GB", help="tensors of large_state_gb_s (default 8, quick 2)")
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="longest time of each side of the admission figures: the sizes that both reach in it are compared",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE", help="default build/bench/figures.json")
    parser.add_argument("--keep", action="store_true", help="keep the figures in FILE that this run does not measure")
    parser.add_argument("--list", action="store_true", help="list the figures and measure nothing")
    parser.add_argument("--table", action="store_true", help="print FILE as a markdown table and measure nothing")
    arguments = parser.parse_args(argv)
    if arguments.workloads is not None and arguments.workloads < 30:
        parser.error(f"argument --workloads: {arguments.workloads} is less than one for each of the 30 queues")
    if arguments.evictions is not None and arguments.evictions < 10:
        parser.error(f"argument --evictions: {arguments.evictions} is less than 10")
    if arguments.nodes is not None and arguments.nodes < 1:
        parser.error(f"argument --nodes: {arguments.nodes} is less than 1")
    if arguments.size is not None and not 0.1 <= arguments.size <= 64:
        parser.error(f"argument --size: {arguments.size:g} GB is not between 0.1 and 64")
    if arguments.limit is not None and arguments.limit <= 0:
        parser.error(f"argument --limit: {arguments.limit:g} s is no time")
    return arguments


def read(path: Path) -> list[dict[str, Any]]:
    """:raises ValueError: no such file, or not one of ours"""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}; measure first: python -m benchmarks") from error
    if not isinstance(found, list) or any(not isinstance(entry, dict) or "key" not in entry for entry in found):
        raise ValueError(f"{path}: not a list of figures")
    return found


def listing() -> str:
    lines = []
    for group in catalogue.GROUPS:
        lines.append(f"{group.name} ({group.needs})")
        lines += [f"  {s.key:30} {s.aim or 'report':8} {s.unit:6} {s.what}" for s in group.specs]
    return "\n".join(lines)


def measure(arguments: argparse.Namespace) -> int:
    only = [key for key in arguments.only.split(",") if key]
    chosen = catalogue.select(only)
    started = time.monotonic()

    def say(text: str) -> None:
        load = os.getloadavg()[0]
        print(f"[{time.monotonic() - started:6.1f} s, load {load:4.1f}] {text}", file=sys.stderr, flush=True)

    kept = read(arguments.output) if arguments.keep and arguments.output.exists() else []
    entries = {entry["key"]: entry for entry in kept}
    options = Options(
        arguments.quick, arguments.workloads, arguments.evictions, arguments.limit, arguments.nodes, arguments.size
    )
    failed = []
    for group, wanted in chosen:
        say(f"{group.name}: {', '.join(spec.key for spec in wanted)}")
        try:
            found = group.measure(options, say)
        except Exception:
            traceback.print_exc()
            failed.append(group.name)
            continue
        for spec in wanted:
            made = figure(spec, found[spec.key])
            entries[spec.key] = made.to_dict()
            verdict = {True: "reached", False: "NOT reached", None: "report only"}[reaches(made.value, made.aim)]
            say(f"{spec.key} = {made.value:g} {made.unit} (aim {made.aim or '-'}: {verdict}) {made.baseline}")
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        order = {spec.key: place for place, spec in enumerate(catalogue.specs())}
        sorted_entries = sorted(entries.values(), key=lambda entry: order.get(entry["key"], len(order)))
        arguments.output.write_text(json.dumps(sorted_entries, indent=1) + "\n")
    say(f"figures are in {arguments.output}" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    try:
        if arguments.list:
            print(listing())
            return 0
        if arguments.table:
            print(table.render(read(arguments.output)))
            return 0
        # What runs is ended and removed on the way out, which a signal alone would not take.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        return measure(arguments)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
