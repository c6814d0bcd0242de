"""The benchmark of plans: its lists of jobs, and what counts as met where a plan is carried out."""

from benchmarks import plan


def test_the_lists_of_jobs():
    row = plan.papers_row(2.0)
    assert row[3] == "yes" and row[2].startswith("6,266 s against 7,748 s in turn; 6,454 s with the slowdown")
    printed, sound = (plan.printed_rows("A100", is_sound) for is_sound in (False, True))
    assert {*sound} < {*printed} and all(row.node == "A100 80GB SXM4" for row in printed)
    jobs = plan.published_jobs(printed, 24, 0)
    assert len(jobs) == 24 and all(set(job.seconds) == {1, 2, 4, 8} for job in jobs)
    assert all(1800 <= job.seconds[1].value <= 14400 for job in jobs)


def test_makespans_are_met_within_a_tenth_and_below_those_in_turn():
    content = {
        "carried_out": {"makespan_s": 109.0, "planned_makespan_s": 100.0},
        "expected_makespan_s": {"value": 98.0},
    }
    planned, likely, in_turn = plan.live_rows(content, 110.0)
    assert planned[2:] == ("109 s, planned 100 s: +9.0%", "yes")
    assert likely[2:] == ("109 s, likely 98 s: +11.2%", "no")
    assert in_turn[2:] == ("109 s, in turn 110 s: -0.9%", "yes")
    content["carried_out"]["makespan_s"] = 85.0
    assert [row[-1] for row in plan.live_rows(content, 84.0)] == ["no", "no", "no"]
    assert len({*plan.LIVE_JOBS}) == 8
