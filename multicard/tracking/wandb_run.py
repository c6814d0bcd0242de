"""A run of W&B that is written with the times of a record, whenever that happens.

`wandb.log` stamps a row with the time of the call. Rows and samples go through W&B's own interface instead, which keeps
theirs; it is none of W&B's public ones, and so nothing outside of this file uses it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from multicard.config.base import TrackerMode
from multicard.tracking import keys
from multicard.tracking.identity import About
from multicard.tracking.timeline import Moment


@dataclass(frozen=True)
class Target:
    """Where runs go, and how.

    finish_s: within which the rest is uploaded at the end; W&B itself would try for days.
    """

    mode: TrackerMode
    project: str
    entity: str | None
    finish_s: float


class WandbRun:
    """One run, from `open` to `finish`.

    Raises:
        RuntimeError: if W&B fails.
        NotLoggedInError: if it has no key of the user's.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._sent = run.starting_step  # rows that W&B has, also of an earlier upload of the same run
        self.attempts_before = run.summary.get(keys.ATTEMPTS) or 0  # of which an earlier upload, which ended, has told

    @classmethod
    def open(cls, about: About, target: Target, folder: Path) -> Self:
        """Start the run, or go on with it where W&B has it.

        Args:
            folder: for W&B's own files.
        """
        import wandb

        with as_runtime_error(), _clock_at(about.started_at):
            _quiet()
            run = wandb.init(
                id=about.id,
                resume="allow",
                project=target.project,
                entity=target.entity,
                group=about.group,
                name=about.name,
                job_type=about.job_type,
                tags=about.tags,
                config=about.config,
                mode=target.mode.value,
                dir=folder,
                reinit="finish_previous",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    git_commit=about.commit,
                    host=about.host,
                    x_disable_stats=True,
                    x_disable_machine_info=True,  # of the machine that uploads, which may be another
                    x_save_requirements=False,
                    x_server_side_derived_summary=True,  # else W&B puts the time of the upload into the summary
                    finish_timeout=target.finish_s,
                    finish_timeout_raises=True,
                ),
            )
            for axis, table in ((keys.STEP, keys.BY_STEP), (keys.EPOCH, keys.BY_EPOCH)):
                run.define_metric(axis)
                for name in keys.names(table, about.job_type):
                    run.define_metric(name, step_metric=axis)
        return cls(run)

    @property
    def url(self) -> str | None:
        return None if self._run.offline else self._run.url

    def describe(self, about: About) -> None:
        """Replace configuration and tags by those that are known at the end."""
        with as_runtime_error():
            self._run.config.update(about.config, allow_val_change=True)
            self._run.tags = about.tags

    def row(self, number: int, values: Mapping[str, Any], moment: Moment) -> None:
        """Log a row of the history, unless W&B has it.

        Args:
            number: of the row in the run, from 0, and the same in every upload of it.
        """
        if number < self._sent:
            return
        row = dict(values) | {"_timestamp": moment.at, "_runtime": moment.runtime_s}
        with as_runtime_error():
            self._run._interface.publish_history(self._run, row, step=number)
        self._sent = number + 1

    def sample(self, at: float, values: Mapping[str, float]) -> None:
        """Log a sample of the machine, taken at Unix time `at`."""
        with as_runtime_error():
            interface = self._run._interface
            stats = interface._make_stats(dict(values))
            stats.timestamp.FromMicroseconds(round(at * 1e6))
            interface._publish(interface._make_record(stats=stats))

    def artifact(
        self, name: str, kind: str, files: Mapping[str, Path | str], facts: Mapping[str, Any], used: bool = False
    ) -> None:
        """Log an artifact of files and texts, by their names in it; `used` by the run, else its product."""
        import wandb

        with as_runtime_error():
            artifact = wandb.Artifact(name, kind, metadata=dict(facts))
            for target, source in files.items():
                if isinstance(source, Path):
                    artifact.add_file(str(source), target, policy="immutable", skip_cache=True)
                else:
                    with artifact.new_file(target, "w", encoding="utf-8") as file:
                        file.write(source)
            if used:
                # as `use_artifact` does with one that is new, but offline too
                self._run._log_artifact(artifact, is_user_created=True, use_after_commit=True)
            else:
                self._run.log_artifact(artifact)

    def table(
        self, number: int, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], moment: Moment
    ) -> None:
        """Log a table, as a row of its own and in the summary."""
        import wandb

        with as_runtime_error():
            table = wandb.Table(list(columns), [list(row) for row in rows], allow_mixed_types=True)
            self._media(number, key, table, moment)

    def page(self, number: int, key: str, path: Path, moment: Moment) -> None:
        """Log an HTML file, likewise."""
        import wandb

        with as_runtime_error():
            self._media(number, key, wandb.Html(str(path), inject=False), moment)

    def _media(self, number: int, key: str, media: Any, moment: Moment) -> None:
        if number >= self._sent:
            self.row(number, {key: media}, moment)
            self._run.summary.update({key: media})

    @property
    def next_row(self) -> int:
        """The number of the first row that W&B does not have."""
        return self._sent

    def finish(self, summary: Mapping[str, Any], end: Moment, exit_code: int) -> None:
        """Write the summary and end the run at a moment of its own clock."""
        ended = {"_timestamp": end.at, "_runtime": end.runtime_s, "_wandb": {"runtime": end.runtime_s}}
        with as_runtime_error():
            self._run.summary.update({**summary, **ended})
            self._run.finish(exit_code=exit_code)


class NotLoggedInError(RuntimeError):
    """W&B has no key of the user's, or none that its server takes: a further try would end the same."""


@contextmanager
def as_runtime_error() -> Iterator[None]:
    """Turn any of W&B's errors into a RuntimeError."""
    try:
        yield
    except RuntimeError:
        raise
    except Exception as error:
        from wandb.errors import AuthenticationError, UsageError

        # a missing key is a UsageError, as is much else
        no_key = isinstance(error, AuthenticationError) or (isinstance(error, UsageError) and "API key" in str(error))
        kind = NotLoggedInError if no_key else RuntimeError
        raise kind(f"{type(error).__name__}: {error}") from error


@contextmanager
def _clock_at(at: float) -> Iterator[None]:
    """Have W&B take `at`, as Unix time, for the moment at which the run starts; it has no setting for it."""
    from wandb.sdk import wandb_init, wandb_run

    modules: tuple[Any, ...] = (wandb_init, wandb_run)
    clock = wandb_run.__dict__["time"]
    for module in modules:
        module.time = _Stopped(clock, at)
    try:
        yield
    finally:
        for module in modules:
            module.time = clock


class _Stopped:
    """The module `time` with a clock that stands."""

    def __init__(self, module: Any, at: float) -> None:
        self._module, self._at = module, at

    def time(self) -> float:
        return self._at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def server() -> str:
    """The URL of W&B's server."""
    return _quiet().settings.base_url


def _quiet() -> Any:
    """W&B within this process, which prints nothing: what goes wrong is raised."""
    import wandb

    return wandb.setup(wandb.Settings(silent=True))
