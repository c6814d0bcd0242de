"""Write a run of W&B with the times of a record, at any later time.

`wandb.log` stamps a row with the time of the call. Rows and samples are therefore sent through
W&B's internal interface, which keeps their times. It is not public, so only this file uses it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

from multicard.config.base import TrackerMode
from multicard.tracking import keys
from multicard.tracking.history import Moment
from multicard.tracking.run_record import WandbRunInfo


@dataclass(frozen=True)
class WandbTarget:
    """Where runs are uploaded, and how.

    `finish_s` limits the upload at the end of a run. W&B would try for days.
    """

    mode: TrackerMode
    project: str
    entity: str | None
    finish_s: float


class NotLoggedInError(RuntimeError):
    """W&B has no API key, or its server refuses the key. Another try would end the same way."""


@contextmanager
def _as_runtime_error() -> Iterator[None]:
    """Turn each of W&B's errors into a RuntimeError."""
    try:
        yield
    except RuntimeError:
        raise
    except Exception as error:
        from wandb.errors import AuthenticationError, UsageError

        # W&B raises UsageError for a missing key, and for much else.
        no_key = isinstance(error, AuthenticationError) or (
            isinstance(error, UsageError) and "API key" in str(error)
        )
        kind = NotLoggedInError if no_key else RuntimeError
        raise kind(f"{type(error).__name__}: {error}") from error


class WandbRun:
    """One run, from `open` to `finish`.

    Attributes:
        next_row: the number of the first row that no earlier upload of the run has sent.
        attempts_before: the number of attempts whose samples a completed upload has sent.

    Raises:
        RuntimeError: W&B failed.
        NotLoggedInError: W&B has no API key.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.next_row: int = run.starting_step
        self.attempts_before: int = run.summary.get(keys.ATTEMPTS) or 0

    @classmethod
    def open(cls, about: WandbRunInfo, target: WandbTarget, folder: Path) -> Self:
        """Start the run, or continue it if W&B has it. W&B's own files are in `folder`."""
        run_facts = {
            name: getattr(about, name)
            for name in ("id", "name", "group", "job_type", "tags", "config")
        }
        destination = {"project": target.project, "entity": target.entity, "mode": str(target.mode)}
        with _as_runtime_error(), _clock_at(about.started_at):
            wandb = _quiet_wandb()
            settings = wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                git_commit=about.commit,
                host=about.host,
                x_disable_stats=True,
                x_disable_machine_info=True,  # The uploading machine may be another one.
                x_save_requirements=False,
                # Otherwise W&B puts the time of the upload into the summary.
                x_server_side_derived_summary=True,
                finish_timeout=target.finish_s,
                finish_timeout_raises=True,
            )
            run = wandb.init(
                **run_facts,
                **destination,
                resume="allow",
                dir=folder,
                reinit="finish_previous",
                settings=settings,
            )
            for axis, table in ((keys.STEP, keys.BY_STEP), (keys.EPOCH, keys.BY_EPOCH)):
                run.define_metric(axis)
                for name in keys.names(table, about.job_type):
                    run.define_metric(name, step_metric=axis)
        return cls(run)

    @property
    def url(self) -> str | None:
        return None if self._run.offline else self._run.url

    def describe(self, about: WandbRunInfo) -> None:
        """Replace the configuration and tags by the ones that are known at the end."""
        with _as_runtime_error():
            self._run.config.update(about.config, allow_val_change=True)
            self._run.tags = about.tags

    def row(self, number: int, values: Mapping[str, Any], moment: Moment) -> None:
        """Log a row of the history, unless W&B has it.

        Rows are numbered from 0, and have the same number in every upload.
        """
        if number < self.next_row:
            return
        row = dict(values) | {"_timestamp": moment.at, "_runtime": moment.runtime_s}
        with _as_runtime_error():
            self._run._interface.publish_history(self._run, row, step=number)
        self.next_row = number + 1

    def sample(self, at: float, values: Mapping[str, float]) -> None:
        """Log a sample of the machine, taken at the Unix time `at`."""
        with _as_runtime_error():
            interface = self._run._interface
            stats = interface._make_stats(dict(values))
            stats.timestamp.FromMicroseconds(round(at * 1e6))
            interface._publish(interface._make_record(stats=stats))

    def artifact(
        self, name: str, kind: str, files: Mapping[str, Path], facts: Mapping[str, Any]
    ) -> None:
        """Log an artifact of files, given by their names in it."""
        import wandb

        with _as_runtime_error():
            artifact = wandb.Artifact(name, kind, metadata=dict(facts))
            for target, source in files.items():
                artifact.add_file(str(source), target, policy="immutable", skip_cache=True)
            self._run.log_artifact(artifact)

    def table(
        self,
        number: int,
        key: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        moment: Moment,
    ) -> None:
        """Log a table, as a separate row and in the summary, unless W&B has the row."""
        import wandb

        if number < self.next_row:
            return
        with _as_runtime_error():
            wandb_table = wandb.Table(
                list(columns), [list(row) for row in rows], allow_mixed_types=True
            )
            self.row(number, {key: wandb_table}, moment)
            self._run.summary.update({key: wandb_table})

    def finish(self, summary: Mapping[str, Any], end: Moment, exit_code: int) -> None:
        """Write the summary, and end the run at a moment of its own clock."""
        end_values = {
            "_timestamp": end.at,
            "_runtime": end.runtime_s,
            "_wandb": {"runtime": end.runtime_s},
        }
        with _as_runtime_error():
            self._run.summary.update({**summary, **end_values})
            self._run.finish(exit_code=exit_code)


@contextmanager
def _clock_at(at: float) -> Iterator[None]:
    """Make W&B take the Unix time `at` as the start of the run. W&B has no setting for it."""
    from wandb.sdk import wandb_init, wandb_run

    stopped_clock = SimpleNamespace(**{**vars(time), "time": lambda: at})
    with (
        patch.object(wandb_init, "time", stopped_clock),
        patch.object(wandb_run, "time", stopped_clock),
    ):
        yield


def server() -> str:
    """Return the URL of W&B's server."""
    return _quiet_wandb().setup().settings.base_url


def _quiet_wandb() -> Any:
    """Return W&B's module, set to print nothing: all errors are raised."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    return wandb
