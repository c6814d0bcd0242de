"""A run of W&B that is written with the times of a record, whenever that happens.

`wandb.log` stamps a row with the time of the call. Rows and samples go through W&B's own interface
instead, which keeps theirs; it is none of W&B's public ones, and so nothing outside of this file
uses it.
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
    """Where runs go, and how; at its end a run has `finish_s` to upload the rest,
    where W&B would try for days.
    """

    mode: TrackerMode
    project: str
    entity: str | None
    finish_s: float


class NotLoggedInError(RuntimeError):
    """W&B has no key of the user's, or none that its server
    takes: a further try would end the same.
    """


@contextmanager
def _as_runtime_error() -> Iterator[None]:
    """Turn any of W&B's errors into a RuntimeError."""
    try:
        yield
    except RuntimeError:
        raise
    except Exception as error:
        from wandb.errors import AuthenticationError, UsageError

        # a missing key is a UsageError, as is much else
        no_key = isinstance(error, AuthenticationError) or (
            isinstance(error, UsageError) and "API key" in str(error)
        )
        kind = NotLoggedInError if no_key else RuntimeError
        raise kind(f"{type(error).__name__}: {error}") from error


class WandbRun:
    """One run, from `open` to `finish`.

    next_row: the number of the first row that W&B does not have, by an earlier upload of the same
    run.
    attempts_before: the attempts whose samples an earlier upload, which ended, has sent.

    Raises:
        RuntimeError: if W&B fails.
        NotLoggedInError: if it has no key of the user's.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.next_row: int = run.starting_step
        self.attempts_before: int = run.summary.get(keys.ATTEMPTS) or 0

    @classmethod
    def open(cls, about: WandbRunInfo, target: WandbTarget, folder: Path) -> Self:
        """Start the run, or go on with it where W&B has it, whose own files are in a folder."""
        own = {
            name: getattr(about, name)
            for name in ("id", "name", "group", "job_type", "tags", "config")
        }
        to = {"project": target.project, "entity": target.entity, "mode": str(target.mode)}
        with _as_runtime_error(), _clock_at(about.started_at):
            wandb = _quiet()
            settings = wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                git_commit=about.commit,
                host=about.host,
                x_disable_stats=True,
                x_disable_machine_info=True,  # of the machine that uploads, which may be another
                x_save_requirements=False,
                # else W&B puts the time of the upload into the summary
                x_server_side_derived_summary=True,
                finish_timeout=target.finish_s,
                finish_timeout_raises=True,
            )
            run = wandb.init(
                **own, **to, resume="allow", dir=folder, reinit="finish_previous", settings=settings
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
        """Replace configuration and tags by those that are known at the end."""
        with _as_runtime_error():
            self._run.config.update(about.config, allow_val_change=True)
            self._run.tags = about.tags

    def row(self, number: int, values: Mapping[str, Any], moment: Moment) -> None:
        """Log a row of the history, unless W&B has it;
        its number counts from 0 and is the same in every upload.
        """
        if number < self.next_row:
            return
        row = dict(values) | {"_timestamp": moment.at, "_runtime": moment.runtime_s}
        with _as_runtime_error():
            self._run._interface.publish_history(self._run, row, step=number)
        self.next_row = number + 1

    def sample(self, at: float, values: Mapping[str, float]) -> None:
        """Log a sample of the machine, taken at Unix time `at`."""
        with _as_runtime_error():
            interface = self._run._interface
            stats = interface._make_stats(dict(values))
            stats.timestamp.FromMicroseconds(round(at * 1e6))
            interface._publish(interface._make_record(stats=stats))

    def artifact(
        self, name: str, kind: str, files: Mapping[str, Path], facts: Mapping[str, Any]
    ) -> None:
        """Log an artifact of files, by their names in it."""
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
        """Log a table, as a row of its own and in the summary, unless W&B has the row."""
        import wandb

        if number < self.next_row:
            return
        with _as_runtime_error():
            shown = wandb.Table(list(columns), [list(row) for row in rows], allow_mixed_types=True)
            self.row(number, {key: shown}, moment)
            self._run.summary.update({key: shown})

    def finish(self, summary: Mapping[str, Any], end: Moment, exit_code: int) -> None:
        """Write the summary and end the run at a moment of its own clock."""
        ended = {
            "_timestamp": end.at,
            "_runtime": end.runtime_s,
            "_wandb": {"runtime": end.runtime_s},
        }
        with _as_runtime_error():
            self._run.summary.update({**summary, **ended})
            self._run.finish(exit_code=exit_code)


@contextmanager
def _clock_at(at: float) -> Iterator[None]:
    """Have W&B take `at`, a Unix time, for the moment at which the run starts;
    it has no setting for it.
    """
    from wandb.sdk import wandb_init, wandb_run

    stopped = SimpleNamespace(**{**vars(time), "time": lambda: at})
    with patch.object(wandb_init, "time", stopped), patch.object(wandb_run, "time", stopped):
        yield


def server() -> str:
    """The URL of W&B's server."""
    return _quiet().setup().settings.base_url


def _quiet() -> Any:
    """W&B, which prints nothing within this process: what goes wrong is raised."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    return wandb
