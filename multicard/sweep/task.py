"""The task of a Hydra job: one cell, alone or as one of a sweep in this process."""

from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from multicard.estimate import before_run
from multicard.records import identity, run_folder
from multicard.run import controller as run
from multicard.run import outcome
from multicard.run.prepare import changed_data, problem, typed
from multicard.run.session import SESSION, say
from multicard.run.workload import Workload
from multicard.sweep import auto_gpus, fit, objective, shares
from multicard.sweep.plan import Cell


def measure(workload: Workload, cfg: DictConfig) -> float | None:
    """Measure `cfg`, or take the record of an earlier measurement of it, or say what it would take. Never raises.

    Returns:
        The figure that `objective` names (`sweep.objective`).
    """
    records = SESSION.records
    before = len(records)
    with ExitStack() as until_ended:
        _measure(workload, cfg, until_ended)
    return objective.value(records[-1] if len(records) > before else None, cfg.objective)


def _measure(workload: Workload, cfg: DictConfig, until_ended: ExitStack) -> None:
    job = HydraConfig.get()
    folder, reason = Path(job.runtime.output_dir), None
    single = job.mode is RunMode.RUN
    if single:
        words, reason = auto_gpus.resolve_single(cfg, HydraConfig.instance().cfg, folder, until_ended)
        folder = identity.find(folder, identity.folder_name(cfg, words))
    measured = None if cfg.rerun else run_folder.finished(folder)
    if reason is None and measured is not None:
        reason = changed_data(workload, typed(workload, cfg), measured)
    reason = reason or objective.problem(workload, cfg.objective)
    if single and cfg.repeat != "1":
        reason = problem(workload, cfg) or f"repeat={cfg.repeat}: several runs are a sweep; add -m"
    if single and cfg.race.figure is not None:
        reason = problem(workload, cfg) or f"race={cfg.race.figure}: needs cells to choose from, a sweep; add -m"
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
        how = {"keep_refused": not single, "predict": before_run.prediction}
        with shares.announced([typed(workload, cfg)]) if single else nullcontext():  # else the launcher has done so
            record = run.measure(workload, cfg, folder, **how)
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
