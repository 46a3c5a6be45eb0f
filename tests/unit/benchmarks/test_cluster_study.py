"""The command of the studies, its files, the measures, and the pictures."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.cluster import __main__ as cli
from benchmarks.cluster import derive, generator, pages, plots, study, verdict
from benchmarks.cluster.active import Active, State
from benchmarks.cluster.book import Book
from benchmarks.cluster.measures import MEASURES, change, fairness, measures
from benchmarks.cluster.model import HELD, Cluster, Flavor, Job, Setting, Tier
from benchmarks.cluster.outcome import EndlessError
from benchmarks.cluster.simulator import Simulation
from benchmarks.cluster.utilisation import busy_percent

ALONE = Job(0, 0, 0.0, 8, 8, 8, "X", 3600.0, 1.0, 1.0, {"v100": 1.0}, 1.0)
SPEEDS = """gpu,placement,job_type,gpus,steps_per_s
v100,consolidated,X (batch size 1),1,1.0
v100,consolidated,X (batch size 1),2,2.0
v100,consolidated,X (batch size 1),8,6.0
"""


def test_a_quick_study_writes_measures_a_picture_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["study", "--quick", "--only", "shared", "--processes", "1", "--seeds", "1", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    found = Book(tmp_path / "studies.json").found("shared")
    idle = (*study.ONLY_WITH_CLASSES, *study.ONLY_WITH_FLAVORS)
    assert list(found) == [name for name in study.CONTENDERS if name not in idle]
    assert all(len(runs) == 1 and runs[0].keys() >= MEASURES.keys() for runs in found.values())
    assert found[study.RESTART][0]["lost_device_h"] > found[study.HOLD][0]["lost_device_h"]
    tree = ElementTree.parse(tmp_path / "shared.svg")
    texts = {node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {"marginal gain", "average completion"} <= texts
    assert "| marginal gain |" in (tmp_path / "shared.md").read_text()
    shown = capsys.readouterr()
    assert f"{len(found)} of {len(found)}: " in shown.err
    before = (tmp_path / "shared.svg").read_text()
    assert cli.main([*arguments, "--go-on"]) == 0
    assert f"{len(found)} of {len(found)} runs are in the book" in capsys.readouterr().err
    assert (tmp_path / "shared.svg").read_text() == before


def test_contenders_are_chosen_and_the_page_gets_what_came_out(tmp_path: Path) -> None:
    page = tmp_path / "studies.md"
    page.write_text("# x\n\n<!-- dear-moves -->\nearlier\n<!-- end of dear-moves -->\n\nafter\n")
    options = [
        "--quick",
        "--seeds",
        "1",
        "--processes",
        "1",
        "--output",
        str(tmp_path / "out"),
        "--docs",
        str(tmp_path),
    ]
    assert cli.main(["study", "--only", "dear moves", "--with", f"{study.SAVING};all", *options]) == 0
    text = page.read_text()
    assert text.startswith("# x") and text.endswith("<!-- end of dear-moves -->\n\nafter\n") and "earlier" not in text
    assert "](studies-dear-moves.svg)" in text and (tmp_path / "studies-dear-moves.svg").exists()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert rows[2:] == [study.SAVING, study.HOLD, "all"]
    assert cli.main(["study", "--only", "shared", "--with", "regrowth", *options]) == 2, "the page has no marks"
    assert not (tmp_path / "out" / "shared.md").exists(), "that is said before anything runs"


def test_another_process_gives_the_same_figures() -> None:
    scenario = study.Scenario("x", "y", devices=64, days=0.5, contenders=(study.HOLD, "all"), seeds=2)
    first = study.play_all([scenario], 1, print, processes=1)
    assert first == study.play_all([scenario], 1, print, processes=2)
    assert first != study.play_all([scenario], 5, print, processes=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "--only", "moon"], "--only = moon: no such scenario; there are shared, busy"),
        (["study", "--with", "luck"], "--with = luck: no such contender; there are Kueue, jobs never save; Kueue"),
        (["derive", "nowhere.csv", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["study", "--seeds", "0"], ["study", "--processes", "-1"], []])
def test_arguments_that_are_refused_at_once(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


def test_the_list_and_the_help(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["study", "--list"]) == 0
    assert "attained service" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "python -m benchmarks.cluster study --quick" in capsys.readouterr().out


def test_derive_reads_files_and_prints_parameters_or_distances(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lines = ["virtual_cluster,job_type,steps,arrival_s,gpus"]
    for number in range(600):
        lines.append(f"vc{number % 3},X (batch size 1),{200 + number},{number * 90},{(1, 1, 2, 8)[number % 4]}")
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "speeds.csv").write_text(SPEEDS)
    files = [str(tmp_path / "jobs.csv.gz"), str(tmp_path / "speeds.csv")]
    assert cli.main(["derive", *files]) == 0
    made = derive.loaded(capsys.readouterr().out)
    assert made.workers == {1: 0.5, 2: 0.25, 4: 0.0, 8: 0.25, 16: 0.0, 32: 0.0}
    assert cli.main(["derive", *files, "--compare"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    durations = [float(row[2]) for row in rows if row[0].strip().startswith("duration")]
    assert len(durations) == 3 and max(durations) < 0.2


def test_the_shipped_parameters_say_what_the_command_prints() -> None:
    assert derive.dumped(generator.shipped()) == generator.PARAMETERS.read_text()


def test_measures_of_one_job() -> None:
    cluster = Cluster([Flavor("v100", 2, 3.0)], [1.0])
    found = measures(Simulation(cluster, [ALONE], Setting(replace(HELD, fails=0.0))).run())
    hours = 1 + HELD.start_s / 3600
    assert found["completion_mean_h"] == found["makespan_h"] == pytest.approx(hours, rel=1e-4)
    assert found["dollars_per_h"] == pytest.approx(3 * hours, rel=1e-4)
    assert found["lost_device_h"] == pytest.approx(8 * HELD.start_s / 3600, rel=1e-4)
    assert (found["moves_per_job"], found["queueing_mean_h"], found["fairness"]) == (0, 0, 1)
    assert (found["promises_kept"], found["waiting_mean_h"]) == (1, 0)


def test_a_job_waits_whenever_it_has_no_devices() -> None:
    """Also after its first admission: parked by the planner, or put back into its queue."""
    cluster = Cluster([Flavor("v100", 1, 3.0)], [1.0])
    low = replace(ALONE, workers=8, least=8, most=8, tier=Tier.BASIC)
    high = replace(low, id=1, arrival_s=600.0, work_s=1800.0, tier=Tier.PREMIUM)
    done = Simulation(cluster, [low, high], Setting(replace(HELD, fails=0.0), classes=True)).run()
    found = measures(done)
    first, second = done.jobs
    assert first.preempted == 1 and second.preempted == 0
    assert found["waiting_mean_h"] > 1800 / 2 / 3600, "the lower one has waited for the higher one"
    assert found["queueing_mean_h"] < 60 / 3600, "and both had begun at once"


def test_fairness_is_jains_index() -> None:
    def done(tenant: int, at: float) -> Active:
        job = Job(tenant, tenant, 0.0, 1, 1, 1, "X", 100.0, 1.0, 1.0, {"v100": 1.0}, 1.0)
        return Active(job, 1, state=State.DONE, finished_at=at)

    assert fairness([done(0, 100.0), done(1, 200.0)]) == pytest.approx(1.5**2 / (2 * 1.25))


def test_changes_are_paired_by_seed() -> None:
    assert change([50.0, 150.0], [100.0, 100.0]) == (0.0, -50.0, 50.0)
    with pytest.raises(ValueError, match="1 runs against 2"):
        change([1.0], [1.0, 2.0])


def test_a_picture_escapes_names_and_colours_by_what_is_better() -> None:
    base = [dict.fromkeys(plots.SHOWN, 100.0)]
    less = [dict.fromkeys(plots.SHOWN, 50.0)]
    drawn = plots.picture("a <b>", {"base": base, "x & y": less}, "base")
    ElementTree.fromstring(drawn)
    fills = [line.partition('fill="')[2][:7] for line in drawn.splitlines() if "<rect" in line][1:]
    assert fills == [plots.BETTER, plots.BETTER, plots.WORSE, plots.BETTER]
    assert "-50.0 (-50 to -50)" in plots.changes({"base": base, "x & y": less}, "base")


def test_a_contender_without_an_end_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenario = study.Scenario("x", "y", devices=64, days=0.5, contenders=(study.HOLD, "lending"), seeds=2)
    usual = study.play

    def endless(run: study.Run) -> dict[str, float]:
        if run.contender == ends_not and run.seed == 2:
            raise EndlessError("after 7 events 1 jobs are not done")
        return usual(run)

    monkeypatch.setattr(study, "play", endless)
    monkeypatch.setattr(study, "ProcessPoolExecutor", ThreadPoolExecutor)
    told: list[str] = []
    ends_not = "lending"
    found = study.play_all([scenario], 1, told.append, processes=1)
    assert list(found["x"]) == [study.HOLD] and "x, lending, seed 2: after 7 events" in "".join(told)
    text = pages.block(scenario, found["x"], ["lending"], "")
    assert "Left out, because its jobs preempt each other without an end: lending." in text
    ends_not = study.HOLD
    with pytest.raises(RuntimeError, match="x: Kueue with the hold has no end, and all are compared with it"):
        study.play_all([scenario], 1, told.append, processes=1)


def test_classes_that_only_name_a_promise_have_one_priority() -> None:
    cluster = Cluster([Flavor("v100", 1, 3.0)], [1.0])
    premium = replace(ALONE, tier=Tier.PREMIUM)
    ranked, equal = (Simulation(cluster, [premium], Setting(HELD, True, one)).jobs[0].priority for one in (True, False))
    assert (ranked, equal) == (Tier.PREMIUM.priority, 0)


def test_only_clear_changes_are_gains_or_losses() -> None:
    base = [{**dict.fromkeys(verdict.ASKED, 100.0), **dict.fromkeys(verdict.BESIDE, 1.0)}] * 2
    mixed = [{**base[0], "completion_mean_h": 80.0}, {**base[0], "completion_mean_h": 120.0, "goodput": 99.0}]
    better = [{**base[0], "completion_mean_h": 90.0, "goodput": 103.0}, {**base[0], "completion_mean_h": 80.0}]
    better[0]["moves_per_job"] = 4.0
    found = {"busy": {"base": base, "mixed": mixed, "better": better, "other": mixed}, "one": {"base": base[:1]}}
    (one,) = verdict.clear(found, "base", ("other",))
    assert one.better and one.text == "average completion -15.0 % (-20 to -10)"
    text = verdict.text(found, "base")
    row = "| better | busy | average completion -15.0 % (-20 to -10) | 1.00 to 2.50 | 1.00 to 1.00 |"
    assert "**Gains**: 1 policy\n" in text and row in text
    assert "**Losses**: 0 policies\n" in text and text.endswith("| none |  |  |  |  |")
    dearer = {"x": {"base": base[:1], "worse": [{**base[0], "dollars_per_h": 110.0}]}}
    row = "| worse | x | cost of work +10.0 % | 1.00 to 1.00 | 1.00 to 1.00 |"
    assert row in verdict.text(dearer, "base")


def test_a_page_gets_its_verdict_when_all_its_scenarios_are_in_the_book(tmp_path: Path) -> None:
    page, book = tmp_path / pages.PAGE, Book()
    text = "".join(f"<!-- {name} -->\n<!-- end of {name} -->\n" for name in ("verdict", "x", "y-z"))
    page.write_text(text)
    scenarios = [study.Scenario(name, "", contenders=(study.HOLD, "all"), seeds=1) for name in ("x", "y z")]
    for number, scenario in enumerate(scenarios):
        book.begin(scenario, 1, go_on=False)
        book.enter(study.Run(scenario, study.HOLD, 1), dict.fromkeys(MEASURES, 1.0))
        pages.put(tmp_path, [scenario], book)
        assert ("**Gains**" in page.read_text()) == (number == 1)
    assert "Not played: all." in page.read_text()


def test_a_book_keeps_what_was_played_with_the_same_parameters(tmp_path: Path) -> None:
    path, one = tmp_path / "studies.json", study.Scenario("x", "", contenders=(study.HOLD, "all"), seeds=2)
    runs = list(study.runs([one], 1))
    book = Book(path)
    book.begin(one, 1, go_on=False)
    for run in runs[:3]:
        book.enter(run, {"goodput": float(run.seed)})
    book = Book(path)
    book.begin(replace(one, about="other words"), 1, go_on=True)
    assert [book.has(run) for run in runs] == [True, True, True, False]
    assert book.found("x") == {study.HOLD: [{"goodput": 1.0}, {"goodput": 2.0}]}, "the other one lacks a seed"
    book.begin(replace(one, contenders=("all",)), 1, go_on=False)
    assert [book.has(run) for run in runs] == [True, True, False, False], "it is to be played again"
    book.enter_endless(runs[2], "no end")
    assert [book.has(run) for run in runs] == [True, True, True, True] and book.endless("x") == ["all"]
    book.begin(replace(one, load=2.0), 1, go_on=True)
    assert not any(book.has(run) for run in runs), "with another load it is another scenario"


def test_a_study_that_was_stopped_has_saved_its_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenario = study.Scenario("x", "y", devices=64, days=0.5, contenders=(study.HOLD, "all"), seeds=1)
    usual, played = study.play, list[str]()

    def play(run: study.Run) -> dict[str, float]:
        played.append(run.contender)
        if len(played) == 2:
            raise KeyboardInterrupt
        return usual(run)

    monkeypatch.setattr(study, "play", play)
    monkeypatch.setattr(study, "ProcessPoolExecutor", ThreadPoolExecutor)
    with pytest.raises(KeyboardInterrupt):
        study.play_all([scenario], 1, print, 1, Book(tmp_path / "studies.json"))
    found = study.play_all([scenario], 1, print, 1, Book(tmp_path / "studies.json"), go_on=True)
    assert played == [study.HOLD, "all", "all"] and list(found["x"]) == [study.HOLD, "all"]


def test_parameters_of_a_user_replace_those_that_are_shipped(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    given = json.loads(generator.PARAMETERS.read_text())
    given["tenants"], given["workers"] = [0.75, 0.25], {"2": 1.0}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(given))
    options = ["--quick", "--seeds", "1", "--processes", "1", "--only", "shared", "--with", study.HOLD]
    assert cli.main(["study", *options, "--parameters", str(path), "--output", str(tmp_path)]) == 0
    asked = json.loads((tmp_path / "studies.json").read_text())["shared"]["asked"]["given"]
    assert asked["tenants"] == [0.75, 0.25] and asked["workers"] == {"2": 1.0}
    made = next(one for one in study.SCENARIOS if one.name == "shared")
    assert len(replace(made, given=derive.loaded(path.read_text())).cluster().shares) == 2
    del given["tenants"]
    path.write_text(json.dumps(given))
    assert cli.main(["study", *options, "--parameters", str(path), "--output", str(tmp_path)]) == 2
    told = f"{path}: parameters: 'tenants': write them with `python -m benchmarks.cluster derive`"
    assert told in capsys.readouterr().err


def test_a_book_of_an_earlier_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "studies.json").write_text(json.dumps({"shared": {study.HOLD: []}}))
    assert cli.main(["study", "--quick", "--only", "shared", "--output", str(tmp_path)]) == 2
    assert "is of an earlier version: remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("speeds", "flavor", "percent"),
    [
        ({"v100": 1.0, "p100": 1.0}, "v100", 0.0),
        ({"v100": 1.0, "p100": 2.2}, "v100", 0.0),
        ({"v100": 1.0, "p100": 9.3 / 14.0}, "v100", 100.0),
        ({"v100": 1.0, "p100": 9.3 / 14.0}, "p100", 100.0),
        ({"v100": 1.0, "p100": 0.8}, "v100", 49.5),
        ({"v100": 1.0, "p100": 0.8}, "p100", 59.6),
        ({"v100": 1.0}, "v100", None),
        ({"v100": 1.0, "p100": 0.0}, "v100", None),
    ],
)
def test_who_is_as_fast_on_a_slower_gpu_keeps_the_faster_one_idle(
    speeds: dict[str, float], flavor: str, percent: float | None
) -> None:
    assert busy_percent(speeds, flavor) == percent
