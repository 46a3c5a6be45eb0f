"""The pure parts of the benchmarks: statistics, aims, selection, table, what is written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import __main__ as cli
from benchmarks import catalogue, compare, machine, model, move_small, scale, stats, table
from kueue_integration.contract import job_names
from kueue_integration.contract.attempt_phases import AttemptPhases
from kueue_integration.contract.record_types import AttemptRecord
from kueue_integration.jobs.status import summarise
from singularity_proxy.protocol.messages import to_json
from singularity_proxy.protocol.phases import SavePhases, StartPhases


def test_median_of_paired_ratios_not_ratio_of_medians():
    assert stats.median_ratio([(1, 2), (30, 10), (4, 4)]) == 1
    with pytest.raises(ValueError, match="positive second value"):
        stats.median_ratio([(1, 0)])
    with pytest.raises(ValueError, match="at least one"):
        stats.median_ratio([])


def test_spread_is_half_the_quartile_distance_and_half_the_range_of_a_few():
    assert stats.spread([1, 2, 3, 4, 5]) == 1
    assert stats.spread([1, 4]) == 1.5
    assert stats.spread([7]) == 0
    with pytest.raises(ValueError, match="no values"):
        stats.spread([])


@pytest.mark.parametrize(
    ("value", "aim", "reached"),
    [(1.0, "<= 1", True), (1.1, "<= 1", False), (3, ">= 3", True), (2.9, ">= 3", False), (5, "", None)],
)
def test_aims(value, aim, reached):
    assert model.reaches(value, aim) is reached


def test_an_aim_that_nobody_can_read():
    with pytest.raises(ValueError, match="aim = 'about 3'"):
        model.reaches(1, "about 3")


def test_every_key_is_measured_once_and_has_a_readable_aim():
    keys = [spec.key for spec in catalogue.specs()]
    assert len(keys) == len(set(keys))
    for spec in catalogue.specs():
        model.reaches(0.0, spec.aim)


def test_aims_of_speed_are_not_loosened():
    aims = {spec.key: spec.aim for spec in catalogue.specs()}
    keys = ("put_cpu_s_per_gb", "known_cpu_s_per_gb", "dump_vs_cp", "periodic_stall_s_per_gb")
    assert [aims[key] for key in keys] == ["<= 1.2", "<= 0.5", ">= 1.5", "<= 0.5"]


def test_mapped_memory_counts_for_each_process_of_a_container_but_its_first(tmp_path):
    for pid, within, kb in [(10, "10\t1", 5), (11, "11\t7", 300), (12, "12\t8", 300), (13, "13", 7000)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tpython3\nNSpid:\t{within}\n")
        rollup = f"55-7f ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nAnonymous: {kb} kB\nLazyFree: 0 kB\n"
        (tmp_path / str(pid) / "smaps_rollup").write_text(rollup)
    assert machine.mapped_bytes([10, 11, 12, 13, 14], tmp_path) == 600 * 1024, "14 has ended"


def test_selection_keeps_groups_together():
    ((group, specs),) = catalogue.select(["barrier_s", "barrier_steps"])
    assert group.name == "moves"
    assert [spec.key for spec in specs] == ["barrier_steps", "barrier_s"]
    assert len(catalogue.select([])) == len(catalogue.GROUPS)
    with pytest.raises(ValueError, match=r"no_such_key: no such figure; there are .*barrier_s"):
        catalogue.select(["no_such_key"])


# --- comparison -------------------------------------------------------------------------------------------------------
def said(*numbers, start=0.0):
    return [compare.Step(n, f"loss {n}", start + n) for n in numbers]


REFERENCE = {n: f"loss {n}" for n in range(1, 100)}


def test_steps_are_read_from_what_ranks_print():
    text = "[rank 0] step 7 loss 0x1.8p+0 at 1234.5678\nwarning: step 8 is near\nstep 8 loss 0x1p+0 at 1235.0\n"
    assert compare.steps_of(text) == [compare.Step(7, "0x1.8p+0", 1234.5678), compare.Step(8, "0x1p+0", 1235.0)]


def test_an_interruption_without_and_with_lost_steps():
    none = compare.judge(said(59, 60), said(61, start=100), 59.5, 70, 71, 5, REFERENCE)
    assert none == compare.Leave(0, 101.0, 10.5, 90.0, 5, True)
    some = compare.judge(said(59, 60), said(41, *range(42, 62), start=100), 59.5, 70, 71, 5, REFERENCE)
    assert (some.lost, some.gap_s, some.again_s) == (20, 101.0, 70.0)
    other = compare.judge(said(59, 60), [compare.Step(61, "other", 99.0)], 59.5, 70, 71, 5, REFERENCE)
    assert not other.exact


def test_an_interruption_after_which_nothing_new_was_made():
    for after in ([], said(41, 60)):
        with pytest.raises(ValueError, match="no new step"):
            compare.judge(said(60), after, 0, 0, 0, 0, REFERENCE)


def test_lines_are_those_that_the_plain_script_does_not_have():
    assert compare.lines("plain.py") == 0
    assert 20 < compare.lines("torch_save.py") < 60
    assert 20 < compare.lines("dcp.py") < 60
    assert compare.trainer_lines() == 3  # an import, the switch, the way back


def test_a_comparison_without_the_trainer_says_so():
    leave = compare.Leave(0, 3.0, 1.0, 2.0, 4_000_000, True)
    lost = compare.Leave(20, 9.0, 0.1, 5.0, 1_000_000, False)
    runs = {"ours": [leave], "torchrun": [lost], "dcp": [lost]}
    found = compare.figures(runs, "Trainer not measured: no network")
    assert found.keys() == {spec.key for spec in compare.GROUP.specs}
    assert found["compare_lost_steps"].value == 0
    text = found["compare_lost_steps"].baseline
    assert text.startswith("torchrun 20, dcp 20, Trainer not measured: no network;")
    assert "ours 1 of 1, torchrun 0 of 1" in text
    assert "155 s" in found["compare_interruption_s"].baseline


def test_table():
    spec = model.Spec("k", "s", "<= 1", "w")
    made = model.figure(spec, model.Measured(1.23456, [1], "a|b"))
    text = table.render([made.to_dict()])
    assert text.splitlines()[2] == "| `k` | 1.235 s | <= 1 s | **no** | a\\|b | `make bench ONLY=k` |"


def test_a_run_writes_what_it_measured_and_keeps_what_it_did_not(tmp_path, monkeypatch, capsys):
    spec, other = model.Spec("one", "s", "", "w"), model.Spec("two", "s", "", "w")

    def broken(options, say):
        raise RuntimeError("no such machine")

    groups = [
        model.Group("good", "", [spec], lambda options, say: {"one": model.Measured(2.0, [[1, 2]])}),
        model.Group("bad", "", [other], broken),
    ]
    monkeypatch.setattr(catalogue, "GROUPS", groups)
    output = tmp_path / "deep" / "figures.json"
    assert cli.main(["--output", str(output), "--keep", "--only", "one"]) == 0
    assert [entry["key"] for entry in json.loads(output.read_text())] == ["one"]
    assert json.loads(output.read_text())[0]["runs"] == [[1, 2]]
    assert cli.main(["--output", str(output), "--keep"]) == 1
    assert "no such machine" in capsys.readouterr().err
    assert [entry["key"] for entry in json.loads(output.read_text())] == ["one"]
    assert cli.main(["--output", str(output), "--table"]) == 0
    assert "`one`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["--only", "x"], "no such figure"), (["--table", "--output", "/nonexistent/f.json"], "measure first")],
)
def test_bad_arguments(argv, message, capsys):
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--workloads 3", "--evictions 1", "--limit 0", "--nodes 0"])
def test_sizes_that_measure_nothing(argument, capsys):
    with pytest.raises(SystemExit):
        cli.main(argument.split())
    assert argument.replace(" ", ": ") in capsys.readouterr().err


def test_admissions_are_compared_at_the_size_that_both_sides_have_reached():
    fast, slow = scale.Piece([1.0, 2.0, 3.0, 4.0], 9.0), scale.Piece([2.0, 5.0], 9.0)
    assert scale.compared(slow, fast) == (5.0, 2.0, 2)
    assert scale.compared(fast, fast) == (4.0, 4.0, 4)
    with pytest.raises(RuntimeError, match="no Workload was admitted on one side"):
        scale.compared(scale.Piece([], 9.0), fast)


def test_list_names_every_key(capsys):
    assert cli.main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(spec.key in shown for spec in catalogue.specs())


def moved(**changes):
    before = AttemptRecord(
        1, "r1", "ondemand", 2, 2, 10.0, first_step_at=12.0, evicted_at=20.0, barrier_at=20.5, committed_at=24.0,
        released_at=25.5, checkpoint="c", ended_by="Preempted",
    )  # fmt: skip
    after = AttemptRecord(2, "r2", "ondemand", 2, 2, 60.0, running_at=66.0, first_step_at=67.0, restored_from="c")
    told = [AttemptPhases(1, save=SavePhases(barrier=0.5, dump=3.0)), AttemptPhases(2, StartPhases(fetch=4.0))]
    job = {"metadata": {"name": "small", "namespace": "default", "uid": "u", "annotations": {
        job_names.ANN_HISTORY: to_json([replace(before, **changes), after]), job_names.ANN_PHASES: to_json(told),
    }}, "spec": {}}  # fmt: skip
    return summarise(job, None, [])


def test_a_small_move_is_read_from_its_trace():
    found = move_small.figures(moved())
    assert (found["leave_s"], found["come_s"]) == (5.5, 7.0)
    assert found["spans"]["queue"] == 34.5 and found["spans"]["fetch"] == 4.0
    assert found["longest"].startswith("longest fetch 4 s, dump 3 s, pods 2 s")
    assert "queue" not in found["longest"]


def test_a_move_without_a_checkpoint_is_no_figure():
    with pytest.raises(ValueError, match="small did not move with a checkpoint: lost"):
        move_small.figures(moved(checkpoint=None, committed_at=None, note="lost"))
