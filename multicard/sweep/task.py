"""The task of a Hydra job: one cell, alone or as one of a sweep in this process."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from multicard.controller import outcome, run
from multicard.controller.prepare import changed_data, problem, typed
from multicard.controller.session import SESSION, say
from multicard.controller.workload import Workload
from multicard.predict import before_run
from multicard.records import identity, run_folder
from multicard.sweep import fit
from multicard.sweep.plan import Cell


def measure(workload: Workload, cfg: DictConfig) -> None:
    """Measure `cfg`, or take the record of an earlier measurement of it, or say what it would take. Never raises."""
    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    single = job.mode is RunMode.RUN
    if single:
        folder = identity.find(folder, identity.folder_name(cfg, list(job.overrides.task)))
    measured = None if cfg.rerun else run_folder.finished(folder)
    reason = None if measured is None else changed_data(workload, typed(workload, cfg), measured)
    if single and cfg.repeat != "1":
        reason = problem(workload, cfg) or f"repeat={cfg.repeat}: several runs are a sweep; add -m"
    if single and reason is None and (cfg.predict.enabled or measured is None):
        reason = _foresee(workload, cfg, folder, measured)
    if reason is not None:
        SESSION.records.append(outcome.refuse(outcome.begin(workload, cfg, folder), reason, keep=False))
    elif single and cfg.predict.enabled:
        return
    elif measured is not None:
        say(f"{SESSION.label}measured before ({measured['status']}): {folder}")
        outcome.release_finished(folder)
        SESSION.records.append(measured | {"folder": str(folder)})
    elif not cfg.dry_run:
        record = run.measure(workload, cfg, folder, keep_refused=not single, predict=before_run.prediction)
        SESSION.records.append(record)
    elif (message := problem(workload, cfg)) is not None:
        SESSION.records.append(outcome.refuse(outcome.begin(workload, cfg, folder), message, keep=False))
    else:
        say(f"dry_run=true: nothing is started. To be measured in this process: {folder}")


def _foresee(workload: Workload, cfg: DictConfig, folder: Path, measured: dict[str, Any] | None) -> str | None:
    """Say of a single run, as of a sweep of one cell, what it would take, or whether it fits. Returns why it is
    refused."""
    composed: Any = HydraConfig.instance().cfg
    try:
        cell = Cell(1, "", composed, cfg, folder, typed(workload, cfg), result=measured)
        if not cfg.predict.enabled:
            fit.passing([cell])
            return cell.problem or None
        from multicard.sweep import predicted

        predicted.show([cell], [cell] if measured is None else [])
    except ValueError as error:
        return str(error)
    return None
