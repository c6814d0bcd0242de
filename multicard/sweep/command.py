"""One command of an entry: its words, its records and its exit code."""

import shlex
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from multicard.machine import private
from multicard.measure.timing import clock_s, process_started_s
from multicard.messages import Message, say
from multicard.ranks.failures import in_a_line
from multicard.records import run_folder, table
from multicard.records.run_folder import RecordedRun, is_probe
from multicard.run.workload import Workload

if TYPE_CHECKING:
    from rich.text import Text


class Conclusion(NamedTuple):
    """The conclusion from the runs of a sweep.

    Attributes:
        lines: printed below the table of runs.
        recommended: the folders of the runs with the recommended setting.
    """

    lines: Sequence["str | Text"] = ()
    recommended: Sequence[Path] = ()


Conclude = Callable[[Sequence[Path]], Conclusion]


class Command:
    """One command of an entry, from its words to its exit code.

    Attributes:
        words: the words of the command line after the entry.
        runs: the runs of the cells, in the order of the table at the end.
        conclude: draws a conclusion from the folders of a sweep's runs.
        is_sweep: several runs may have been asked for.
        foreseen_s: time that predictions took before the first run; not part of its start-up.
        abandoned: some cells were left without being measured.
        has_said_order: the line on the shuffled order of cells was printed.
        has_said_as_before: the line on cells that are measured as the sweep began was printed.
        would_refuse: a dry run or a prediction found a cell that would be refused.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.words = list[str]()
        self.conclude: Conclude = lambda folders: Conclusion()
        self.runs: list[RecordedRun] = []
        self.is_sweep = self.abandoned = self.would_refuse = False
        self.has_said_order = self.has_said_as_before = False
        self.foreseen_s = 0.0
        self._runs = 0
        self._numbers = list[int]()  # Numbers of the runs in the sweep's typed order.

    def forget(self, *keys: str) -> None:
        """Remove words that set these keys from the words that are shown of this command."""
        self.words = [word for word in self.words if word.partition("=")[0] not in keys]

    def take(self, runs: Mapping[int, RecordedRun]) -> None:
        """Add the runs of cells, by their number in the typed order of the sweep."""
        for number, run in runs.items():
            place = bisect_right(self._numbers, number)
            self._numbers.insert(place, number)
            self.runs.insert(place, run)

    def run_started_s(self) -> float:
        """Return the start of the run that begins now, in seconds of `clock_s`.

        The first run began with the command itself.
        """
        self._runs += 1
        return process_started_s() + self.foreseen_s if self._runs == 1 else clock_s()

    def close(self) -> int:
        """Print the table of the runs of this command, and return its exit code."""
        # Each refusal has been printed, and a table of refused runs has no figures.
        are_refused = all(run.status == "refused" for run in self.runs)
        if self.runs and not are_refused:
            probes = all(is_probe(run.record, run.folder) for run in self.runs)
            measured_folders = [run.folder for run in self.runs if run.status == "ok"]
            conclusion = Conclusion()
            if self.is_sweep and measured_folders and not probes:
                conclusion = self._conclusion(measured_folders)
            table.show(self.runs, probes, conclusion.recommended)
            _show_profiles(self.runs)
            for line in conclusion.lines:
                say(line)
        for sweep in {run.folder.parent for run in self.runs if run.folder.exists()}:
            if (writers := private.writers(sweep)) is not None:
                place = shlex.quote(str(sweep))
                message = Message(
                    "sweep.open-to-others",
                    f"{writers} may write to {sweep}, and falsify its records; use `chmod go-w"
                    f" {place}`",
                    who=writers,
                    folder=str(sweep),
                )
                say(message, error=True)
        has_failure = any(
            run.status in run_folder.BAD or run.tracker_error is not None for run in self.runs
        )
        return 1 if has_failure or self.abandoned or self.would_refuse else 0

    def _conclusion(self, measured_folders: Sequence[Path]) -> Conclusion:
        """Return the conclusion from the runs. A failure here does not change the exit code."""
        try:
            return self.conclude(measured_folders)
        except Exception as error:
            reason = in_a_line(error)
            say(
                Message("sweep.no-conclusion", f"no conclusion: {reason}", reason=reason),
                error=True,
            )
            return Conclusion()


def _show_profiles(runs: list[RecordedRun]) -> None:
    """Print the metrics of a single profiled run, or the command that shows several."""
    profiles = []
    folders = []
    for run in runs:
        profile = run.record.profile
        if profile is not None and profile.error is not UNSET:
            message = Message(
                "profile.error",
                f"profile: {profile.error} ({run.folder})",
                reason=profile.error,
                folder=str(run.folder),
            )
            say(message, error=True)
        elif profile is not None:
            profiles.append(profile)
            folders.append(run.folder)
    if len(runs) == 1 and profiles:
        from multicard.observe.profiles.command import VIEWERS, lines_of, profile_tables
        from multicard.observe.profiles.metrics import Profile

        say("\n".join(["", *lines_of(profile_tables(Profile.of(profiles[0]), top=10))]))
        traces = f"{runs[0].folder}/profile"
        viewer = VIEWERS[profiles[0].source]
        say(Message("profile.traces", f"Traces: {traces}; {viewer} opens them", folder=traces))
    elif profiles:
        from multicard.observe.profiles.trace_files import shown_by

        others = len(folders) - 1
        sweep_shows = f"; `{shown_by(folders[0].parent)}` lists the others" if others else ""
        say(
            Message(
                "profile.show",
                f"Profiles: `{shown_by(folders[0])}`{sweep_shows}",
                folder=str(folders[0]),
                more=others,
            )
        )
