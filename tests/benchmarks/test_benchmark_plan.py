"""The benchmark of plans: its lists of jobs."""

from benchmarks import plan


def test_the_lists_of_jobs():
    row = plan.papers_row(2.0)
    assert row[3] == "yes" and row[2].startswith("6,266 s against 7,748 s in turn; 6,454 s with the slowdown")
    printed, sound = (plan.printed_rows("A100", is_sound) for is_sound in (False, True))
    assert {*sound} < {*printed} and all(row.node == "A100 80GB SXM4" for row in printed)
    jobs = plan.published_jobs(printed, 24, 0)
    assert len(jobs) == 24 and all(set(job.seconds) == {1, 2, 4, 8} for job in jobs)
    assert all(1800 <= job.seconds[1].value <= 14400 for job in jobs)
