"""Preparation of a run before its ranks: checks, and the folder."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from multicard.config import schema
from multicard.config.base import ProfileName, RunConfig, plain
from multicard.config.job import Numa, count
from multicard.config.placement import Placement, place
from multicard.config.roles import Role
from multicard.machine import devices, environment
from multicard.machine.load import LoadMeter
from multicard.machine.slurm import Allocation
from multicard.measure.timing import clock_s
from multicard.messages import Message, Refusal, say
from multicard.observe.profiles import nsys
from multicard.ranks import checkpoint, failures
from multicard.ranks.process import RankSettings
from multicard.records import content, ownership, run_folder
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import DataContent, Prediction
from multicard.run import attempts
from multicard.run.peers import Peers
from multicard.run.workload import Workload

# The record's `prediction` of a run that is about to start in a folder,
# on the code that `environment.git` describes
Predict = Callable[[RunConfig, Path, dict[str, Any] | None], Prediction | None]

MOST_RANKS_A_CORE = 8  # CPU ranks: more would only wait for each other


@dataclass(frozen=True)
class PreparedRun:
    """A validated run whose folder is claimed, ready to launch.

    load: of the machine, from here on; None where an earlier start trained the run, and only its
    record is missing.
    others: the records of the sweep by now (`ownership.record_stamps`).
    arguments: what the workload's function is called with, after its `Rank`.
    """

    workload: Workload
    config: RunConfig
    placement: Placement
    folder: Path
    allocation: Allocation
    load: LoadMeter | None = None
    others: dict[Path, tuple[int, int]] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()


def typed(workload: Workload, cfg: DictConfig) -> RunConfig:
    """The composed configuration as dataclasses, checked as far as no machine is needed; a
    ValueError says what can never work.
    """
    try:
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        line = str(error).splitlines()[0]
        raise Refusal("run.not-typed", line, reason=line) from None
    assert isinstance(config, RunConfig)
    for name in schema.keys(
        Role.follows
    ):  # what follows from others stands in the record's axes and in config.yaml too
        if name in cfg:
            cfg[name] = getattr(config, name)
    workload.refuse(config)
    return config


def check(workload: Workload, config: RunConfig, allocation: Allocation) -> Placement:
    """Check all that can be checked before anything starts, on the machine that is to run it; a
    ValueError says what cannot work, with the key and the remedy.
    """
    placement = place(config, len(devices.visible_gpus()), allocation.nodes)
    cores = environment.cores()
    most = MOST_RANKS_A_CORE * cores
    if placement.device == "cpu" and config.gpus > most:
        raise Refusal(
            "run.too-many-ranks",
            f"gpus={config.gpus}: {count(config.gpus, 'CPU rank')} would take turns on"
            f" {count(cores, 'core')}, and each takes some 600 MB of memory; use `gpus={most}` or"
            " fewer",
            key="gpus",
            value=config.gpus,
            cores=cores,
            most=most,
        )
    if config.profile.name is ProfileName.nsys:
        nsys.check(placement.device)
    workload.fits(config, placement)
    workload.has_room(config, placement)
    workload.check(config)
    return placement


def problem(workload: Workload, cfg: DictConfig) -> str | None:
    """Why this machine would refuse a run, by the same checks; None where it would not."""
    try:
        check(workload, typed(workload, cfg), Allocation())
    except ValueError as error:
        return str(error)
    return None


def data_now(workload: Workload, config: RunConfig) -> DataContent | None:
    """The fingerprint of the data as it lies there now; None where it cannot be read."""
    try:
        return content.fingerprint(workload.data(config))
    except (ValueError, OSError):
        return None


def changed_data(
    workload: Workload,
    config: RunConfig,
    data: DataContent | None,
    known: dict[str, DataContent | None] | None = None,
) -> Message | None:
    """Why the record of this configuration is of other `data` than lies there now; None where it is
    not, or where that
    cannot be told: an older record, or a machine that does not hold the data.

    Args:
        known: fingerprints by the configuration of the data,
            for a sweep whose cells have the same data; added to.
    """
    if data is None:
        return None
    values, known = plain(config), {} if known is None else known
    key = json.dumps([values.get(group) for group in schema.own(type(config), Role.content)])
    if key not in known:
        known[key] = data_now(workload, config)
    changed = content.difference(data, known[key])
    if changed is None:
        return None
    return Message(
        "record.other-data",
        f"the data is no longer that of the record ({changed}); put that data back, "
        "measure again with `rerun=true`, or choose another `name=NAME`",
        changed=changed,
    )


def prepare(
    workload: Workload,
    cfg: DictConfig,
    folder: Path,
    started_s: float,
    allocation: Allocation,
    peers: Peers,
    predict: Predict = lambda *_: None,
    family: int | None = None,
) -> PreparedRun:
    """Check a run on all its nodes, claim its folder and write
    there what is known before the ranks start.

    Raises:
        ValueError: what cannot work, with the key and the remedy.
        Interrupted: another node is gone or did not come up.
    """
    peers.meet()
    config = typed(workload, cfg)
    placement = check(workload, config, allocation)
    config = _with_profiler(config, placement)
    try:
        trained = attempts.is_trained(folder, placement.world_size)
        restarted = ownership.claim(folder, allocation.job, keep=trained and not cfg.rerun)
        try:
            run_folder.remove_partial(folder)
            if restarted and trained:
                problem = changed_data(workload, config, attempts.last(folder).data)
                if problem is not None:
                    raise Refusal.of(problem)
                return PreparedRun(workload, config, placement, folder, allocation)
            if restarted and checkpoint.latest(folder) is None:
                ownership.clear(folder)  # nothing to resume from: start over
            data, load, taken_s = _untimed(workload, config, family)
            attempts.require_same_data(folder, data)
            machine = environment.collect()
            run_folder.write_environment(folder, msgspec.convert(machine, Environment))
            run_folder.write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
            predicting_s = clock_s()
            others = ownership.record_stamps(folder.parent)
            prediction = predict(config, folder, machine["git"])
            taken_s += clock_s() - predicting_s
            # identifying the data, reading the load and predicting are no part of starting
            attempts.begin(
                folder, allocation, machine["git"], data, started_s + taken_s, prediction
            )
            arguments = workload.arguments(config, placement, folder)
            # without configuration and folder, which every node has itself
            peers.begin(attempts.current(folder), arguments[2:])
        except BaseException:
            if restarted:
                ownership.release(folder)  # keep what the job left, to start from again
            else:
                ownership.disclaim(folder)
            raise
    except OSError as error:
        raise Refusal.of(failures.unwritable(folder, error)) from None
    return PreparedRun(workload, config, placement, folder, allocation, load, others, arguments)


def _with_profiler(config: RunConfig, placement: Placement) -> RunConfig:
    """The configuration with the profiler that `profile=auto` is here,
    and a line where it is the lesser one.
    """
    own = nsys.chosen(config, placement.device)
    if own is not config and own.profile.name is ProfileName.kineto and placement.device == "cuda":
        message = Message(
            "profile.no-nsys",
            "profile=auto: no nsys on the PATH (Nsight Systems): torch's own profiler (kineto)"
            " instead, which does not record cudaEventDestroy, and holds all events in memory",
            key="profile",
        )
        say(message)
    return own


def _untimed(
    workload: Workload, config: RunConfig, family: int | None
) -> tuple[DataContent, LoadMeter, float]:
    """The fingerprint of a run's data, the machine's load from now on,
    and the seconds that both took.
    """
    began_s = clock_s()
    try:
        data = content.fingerprint(workload.data(config))
        data.repeated = workload.repeated(config)
    except OSError as error:
        raise content.unreadable(error) from None
    load = LoadMeter(family)
    return data, load, clock_s() - began_s


def job_of(
    workload: Workload,
    config: RunConfig,
    placement: Placement,
    folder: Path,
    allocation: Allocation,
) -> RankSettings:
    """The job of the ranks of this node."""
    return RankSettings(
        folder,
        placement.device,
        workload.nccl if placement.backend == "nccl" else placement.backend,
        devices=len(devices.visible_gpus()),
        threads=max(1, environment.cores() // placement.processes),
        malloc=str(config.malloc),
        joins=workload.joins,
        numa=binds(config, placement),
        allocation=allocation,
        wrapper=nsys.command(folder) if config.profile.name is ProfileName.nsys else (),
    )


def binds(config: RunConfig, placement: Placement) -> bool:
    """True where torch binds ranks to the NUMA node of their GPU, by the program `numactl`.

    Not under nsys: torch would ask for the GPU in this process, and so start CUDA in it.
    """
    wanted = (
        config.numa is Numa.node
        and placement.device == "cuda"
        and config.profile.name is not ProfileName.nsys
    )
    return wanted and shutil.which("numactl") is not None
