"""Mirrors a run's record to Weights & Biases.

It reads the run folder, in the controller: what W&B gets is on disk first, and the ranks are not disturbed while timed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multicard.config.base import RunConfig, TrackerConfig, TrackerMode, plain
from multicard.config.keys import flat
from multicard.machine import network
from multicard.measure import formulas
from multicard.records import run_folder

FINISH_S = 60.0  # within which the rest is uploaded at the end; W&B itself would try for days
# Figures of an epoch, of either workload, and their charts
PER_EPOCH = {"test_accuracy": "test/accuracy", "test_loss": "test/loss", "train_s": "test/train_s"}


class Mirror:
    """One W&B run: written at the end offline, epoch by epoch online.

    Raises:
        RuntimeError: if W&B fails, which is an error of the command and no warning.
    """

    def __init__(self, config: RunConfig, kind: str, folder: Path) -> None:
        self._config, self._kind, self._folder = config, kind, folder
        self._options: TrackerConfig = config.tracker
        self._run: Any = None
        self._steps = 0
        self._epochs = 0
        self._failed: RuntimeError | None = None

    @property
    def live(self) -> bool:
        return self._options.mode is TrackerMode.online

    def reach(self) -> None:
        """See that W&B's server answers."""
        import wandb

        url = wandb.setup().settings.base_url
        if (why := network.problem(url)) is not None:
            raise RuntimeError(f"cannot reach {url} ({why})")

    def open(self) -> None:
        """Start the W&B run."""
        import wandb

        with _as_runtime_error():
            self._run = wandb.init(
                project=self._options.project,
                entity=self._options.entity,
                group=self._folder.parent.name,
                name=self._folder.name,
                job_type=self._kind,
                tags=[*self._options.tags, *["probe"] * self._config.probe.enabled],
                config=plain(self._config),
                mode=self._options.mode.value,
                dir=self._folder,
                reinit="finish_previous",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    x_disable_stats=True,
                    finish_timeout=FINISH_S,
                    finish_timeout_raises=True,
                ),
            )
            self._run.define_metric("train/step")
            self._run.define_metric("train/*", step_metric="train/step")
            self._run.define_metric("epoch")
            self._run.define_metric("test/*", step_metric="epoch")

    def update(self) -> None:
        """Log the steps and epochs written since the last call; `close` raises what fails here."""
        ranks = run_folder.read_ranks(self._folder)
        epochs = min((rank["epochs"] for rank in ranks), key=len, default=[])
        if self._failed is not None or len(epochs) <= self._epochs:
            return
        try:
            with _as_runtime_error():
                self.log(run_folder.read_steps(self._folder), epochs)
        except RuntimeError as error:
            self._failed = error

    def log(self, steps: Any, epochs: list[dict[str, Any]]) -> None:
        """Log the new epochs and their steps.

        Args:
            steps: of all ranks (an Arrow table).
            epochs: all so far.
        """
        new = epochs[self._epochs :]
        for row in step_rows(steps, {epoch["epoch"] for epoch in new}):
            self._run.log({f"train/{key}": value for key, value in row.items()} | {"train/step": self._steps})
            self._steps += 1
        for epoch in new:
            figures = {name: epoch[key] for key, name in PER_EPOCH.items() if key in epoch}
            self._run.log({"epoch": epoch["epoch"], **figures})
        self._epochs = len(epochs)

    def close(self, result: dict[str, Any], steps: Any) -> None:
        """Log the remaining epochs and the summary, and end the run."""
        if self._failed is not None:
            raise self._failed
        if self._run is None:
            self.open()
        assert self._run is not None
        summary = {key: value for key, value in result.items() if key not in ("axes", "epochs", "cause", "config")}
        with _as_runtime_error():
            if steps is not None:
                self.log(steps, result["epochs"])
            self._run.summary.update(charted(summary))
            self._run.finish(exit_code=0 if result["status"] == "ok" else 1)
        self._run = None


@contextmanager
def _as_runtime_error() -> Iterator[None]:
    """Turn any of W&B's errors into a RuntimeError."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def step_rows(steps: Any, epochs: set[int]) -> list[dict[str, float]]:
    """One row per step of these epochs: its `step_s` over all ranks, and the mean `loss` weighted by samples."""
    import numpy as np

    columns = {key: steps[key].to_numpy() for key in ("epoch", "rank", "step", "step_s", "loss", "samples")}
    tuning = "tokens" in steps.column_names  # of which only rank 0 knows the loss
    unknown = columns["rank"] > 0 if tuning else columns["samples"] == 0
    rows = []
    for epoch in sorted(epochs):
        in_epoch = columns["epoch"] == epoch
        step, loss = columns["step"][in_epoch], columns["loss"][in_epoch]
        weights = np.where(unknown[in_epoch], 0, columns["samples"][in_epoch])
        steps_s = formulas.step_times_s(
            np.zeros_like(step), columns["rank"][in_epoch], step, columns["step_s"][in_epoch]
        )
        losses = np.where(weights > 0, loss, 0.0)
        mean = np.bincount(step, weights=losses * weights) / np.bincount(step, weights=weights)
        rows += [{"step_s": s, "loss": loss} for s, loss in zip(steps_s.tolist(), mean.tolist(), strict=True)]
    return rows


def charted(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary as "outer.inner" to value, without lists and None, which W&B does not chart."""
    return {key: value for key, value in flat(summary).items() if not isinstance(value, list | None)}
