"""Note in a rank's report why a run has no held-out loss in int4.

This file imports no torch, because the controller uses it too.
"""

from pathlib import Path

from multicard.messages import Message
from multicard.ranks.failures import Failure, in_a_line
from multicard.records import rank_files
from multicard.records.rank_files import LlmReport


def problem(error: Exception | Failure, rank: int) -> str:
    """Return in one line why the held-out rows have no loss in int4."""
    reason = error.message if isinstance(error, Failure) else in_a_line(error)
    sentence = f"no loss in int4: rank {rank} could not score the held-out rows in int4 ({reason})"
    return str(Message("llm.int4-failed", sentence, rank=rank, reason=reason))


def note_failed_scoring(folder: Path, failure: Failure) -> bool:
    """Write the reason to the rank's report if a rank failed while it scored rows in int4.

    A rank scores rows in int4 after the training, so the run was measured despite the failure.
    The report has the reason, so that the record can always be made from the run folder alone.

    Returns:
        True if the rank failed there. False if it failed elsewhere: no file is changed then.
    """
    failed_report = None
    for report in rank_files.read_reports(folder):
        if isinstance(report, LlmReport) and report.rank == failure.rank:
            failed_report = report
            break
    if failed_report is None or not failed_report.scoring_in_int4 or failed_report.held_out is None:
        return False
    failed_report.held_out.int4_problem = problem(failure, failed_report.rank)
    failed_report.scoring_in_int4 = False
    rank_files.write(folder, failed_report)
    return True
