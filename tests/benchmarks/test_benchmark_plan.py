"""The benchmark of a plan that is carried out: what counts as met."""

from benchmarks import plan_live


def test_makespans_are_met_within_a_tenth_and_below_those_in_turn():
    content = {
        "carried_out": {"makespan_s": 109.0, "planned_makespan_s": 100.0},
        "expected_makespan_s": {"value": 98.0},
    }
    planned, likely, in_turn = plan_live.rows(content, 110.0)
    assert planned[2:] == ("109 s, planned 100 s: +9.0%", "yes")
    assert likely[2:] == ("109 s, likely 98 s: +11.2%", "no")
    assert in_turn[2:] == ("109 s, in turn 110 s: -0.9%", "yes")
    assert plan_live.rows(content, 109.0)[-1][-1] == "no"
    content["carried_out"]["makespan_s"] = 85.0
    assert [row[-1] for row in plan_live.rows(content, 109.0)] == ["no", "no", "yes"]


def test_the_jobs_are_eight_of_both_entries():
    entries = [words.split()[0] for words in plan_live.JOBS]
    assert [entries.count(entry) for entry in ("train_vision.py", "tune_llm.py")] == [4, 4] and len(
        {*plan_live.JOBS}
    ) == 8
