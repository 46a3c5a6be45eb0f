"""`singularityctl demo`: cluster and Airflow up, the story, the comparison, the report, everything down again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kueue_integration.errors import SingularityError
from localcluster import machines
from localcluster.errors import LocalClusterError
from singularity_proxy.protocol import names

from . import report, state, timeline
from .interrupts import first_interrupt
from .model import Expectation, Outcome
from .progress import Progress
from .quickstart import compare_with_reference, play
from .stage import NAMESPACE, Stage

DEFAULT_OUTPUT = Path("build/demo")
INTERRUPTED = 130
NAMESPACES = {names.ENGINE_PROCESS: NAMESPACE, names.ENGINE_STATE: state.RESTRICTED}
"""Engine -> where its training runs."""


def run_demo(
    keep: bool = False,
    output: Path = DEFAULT_OUTPUT,
    cluster: str = "default",
    engine: str = names.ENGINE_PROCESS,
    privileges: str = "",
) -> int:
    """Run the whole story and write `report.json` and `timeline.svg` to `output`. 0 when the verdict is `pass`.

    :param engine: `process`: a task of Airflow; `state`: a job without a privilege, whose ranks follow its pods
    :param privileges: the chart's `pods.privileges`; "": its default

    What it started is torn down in every outcome, also on Ctrl-C; with `keep` it stays and the end says how to stop it.
    """
    progress = Progress()
    output.mkdir(parents=True, exist_ok=True)
    for old in ("report.json", "timeline.svg"):
        (output / old).unlink(missing_ok=True)
    stage = Stage(cluster, progress.say, privileges=privileges)
    with first_interrupt() as no_more:
        try:
            return _run(stage, output, keep, engine)
        except (SingularityError, LocalClusterError, OSError, ValueError) as error:
            progress.say(f"FAILED: {error}")
            stage.save_evidence(output / "logs", NAMESPACES[engine])
            return 1
        except KeyboardInterrupt:
            progress.say("interrupted: taking down what was started")
            return INTERRUPTED
        finally:
            no_more()
            stage.close(keep)


def _run(stage: Stage, output: Path, keep: bool, engine: str) -> int:
    airflow = engine == names.ENGINE_PROCESS
    stage.up(with_airflow=airflow)
    stage.say(stage.where())
    expect, outcome = _play_process(stage, keep) if airflow else state.play_and_judge(stage)
    content = report.build(expect, outcome, with_airflow=airflow)
    write(output, expect, outcome, content)
    stage.say(f"\n{report.table(content)}\n\n{report.summary(content)}")
    stage.say(f"report: {output / 'report.json'}   picture: {output / 'timeline.svg'}")
    if not keep:
        stage.say("what this run started is taken down now; `make demo KEEP=1` leaves it up to look at")
    if content["verdict"] == "pass":
        return 0
    stage.save_evidence(output / "logs", NAMESPACES[engine])
    return 1


def _play_process(stage: Stage, keep: bool) -> tuple[Expectation, Outcome]:
    machines.alike(stage.name, stage.say)  # of another story on this cluster that was killed
    expect, record = play(stage)
    if not keep:
        stage.stop_airflow()
    return expect, Outcome(record, compare_with_reference(stage, record.job, expect.ranks))


def write(output: Path, expect: Expectation, outcome: Outcome, content: dict[str, Any]) -> None:
    """Write report.json and timeline.svg below `output`."""
    (output / "report.json").write_text(json.dumps(content, indent=2) + "\n")
    ranks = f"{expect.ranks} {'virtual ranks' if expect.elastic else 'ranks'}"
    title = f"{outcome.record.job}: {ranks}, {expect.steps} steps, verdict {content['verdict']}"
    (output / "timeline.svg").write_text(timeline.svg(outcome.record, title))
