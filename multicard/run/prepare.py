"""Prepare a run before its ranks start: check it, and claim and fill its folder."""

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
from multicard.records.schema_data import DataContent
from multicard.records.schema_environment import Environment
from multicard.records.schema_parts import Prediction
from multicard.run import attempts
from multicard.run.peers import Peers
from multicard.run.workload import Workload

# A function that makes the record's `prediction` for a run that is about to start in a folder. The
# last argument describes the code, as `environment.git` returns it.
Predict = Callable[[RunConfig, Path, dict[str, Any] | None], Prediction | None]

MAX_RANKS_PER_CORE = 8  # More CPU ranks would only wait for each other.


@dataclass(frozen=True)
class PreparedRun:
    """A run that is checked and whose folder is claimed, ready to launch.

    Attributes:
        load: Measures the machine's load from now on. None if an earlier start trained the run and
            only its record is missing.
        others: The records of the sweep by now (`ownership.record_stamps`).
        arguments: The arguments of the workload's function after its `Rank`.
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
    """Turn the composed configuration into dataclasses, and make all checks that need no machine.

    Raises:
        ValueError: The configuration can never work. The message says why.
    """
    try:
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        line = str(error).splitlines()[0]
        raise Refusal("run.not-typed", line, reason=line) from None
    assert isinstance(config, RunConfig)
    # Derived values go back into the composed configuration: the record's axes and config.yaml have
    # them too.
    for name in schema.keys(Role.follows):
        if name in cfg:
            cfg[name] = getattr(config, name)
    workload.refuse(config)
    return config


def crowd_notice(placement: Placement) -> Message | None:
    """Return a notice if there are more CPU ranks than cores here; None if there are not."""
    cores = environment.cores()
    if not placement.crowded(cores):
        return None
    ranks = placement.processes
    return Message(
        "run.crowded",
        f"more CPU ranks than cores: {ranks} ranks take turns on {count(cores, 'core')}; use"
        f" `gpus={cores}` or fewer",
        key="gpus",
        ranks=ranks,
        cores=cores,
    )


def check_run(workload: Workload, config: RunConfig, allocation: Allocation) -> Placement:
    """Make all checks before anything starts, on the machine that is to run it.

    Raises:
        ValueError: The run cannot work here. The message has the key and the remedy.
    """
    placement = place(config, len(devices.visible_gpus()), allocation.nodes)
    cores = environment.cores()
    most_ranks = MAX_RANKS_PER_CORE * cores
    if placement.device == "cpu" and config.gpus > most_ranks:
        raise Refusal(
            "run.too-many-ranks",
            f"gpus={config.gpus}: {count(config.gpus, 'CPU rank')} would take turns on"
            f" {count(cores, 'core')}, and each takes about 600 MB of memory; use"
            f" `gpus={most_ranks}` or fewer",
            key="gpus",
            value=config.gpus,
            cores=cores,
            most=most_ranks,
        )
    if config.profile.name is ProfileName.nsys:
        nsys.refuse_unavailable(placement.device)
    workload.fits(config, placement)
    workload.has_room(config, placement)
    workload.check(config)
    return placement


def problem(workload: Workload, cfg: DictConfig) -> str | None:
    """Return why this machine would refuse a run, or None if it would not."""
    try:
        config = typed(workload, cfg)
    except ValueError as error:
        return str(error)
    return problem_of(workload, config)


def problem_of(workload: Workload, config: RunConfig) -> str | None:
    """Return why this machine would refuse a run with a checked configuration, or None."""
    try:
        check_run(workload, config, Allocation())
    except ValueError as error:
        return str(error)
    return None


def data_now(workload: Workload, config: RunConfig) -> DataContent | None:
    """Return the fingerprint of the data as it is now, or None if it cannot be read."""
    try:
        return content.fingerprint(workload.data(config))
    except (ValueError, OSError):
        return None


def changed_data(
    workload: Workload,
    config: RunConfig,
    data: DataContent | None,
    known_fingerprints: dict[str, DataContent | None] | None = None,
) -> Message | None:
    """Return a message if the data has changed since the record of this configuration was made.

    Returns None if it has not changed. None is also returned if that cannot be known: for older
    records, and on a machine that does not hold the data.

    Args:
        data: The fingerprint in the record.
        known_fingerprints: Fingerprints by the configuration of the data, to which new ones are
            added. A sweep passes it, because its cells have the same data.
    """
    if data is None:
        return None
    values = plain(config)
    if known_fingerprints is None:
        known_fingerprints = {}
    key = json.dumps([values.get(group) for group in schema.own(type(config), Role.content)])
    if key not in known_fingerprints:
        known_fingerprints[key] = data_now(workload, config)
    changed = content.difference(data, known_fingerprints[key])
    if changed is None:
        return None
    return Message(
        "record.other-data",
        f"the data has changed since the record was made ({changed}); put the earlier data back, "
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
    """Check a run on all its nodes, claim its folder, and write what is known before ranks start.

    Raises:
        ValueError: The run cannot work. The message has the key and the remedy.
        Interrupted: Another node is gone or did not come up.
    """
    peers.meet()
    config = typed(workload, cfg)
    placement = check_run(workload, config, allocation)
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
                ownership.clear(folder)  # There is nothing to resume from, so start over.
            data, load, taken_s = _identify_data(workload, config, family)
            attempts.require_same_data(folder, data)
            machine = environment.collect()
            run_folder.write_environment(folder, msgspec.convert(machine, Environment))
            run_folder.write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
            predicting_s = clock_s()
            others = ownership.record_stamps(folder.parent)
            prediction = predict(config, folder, machine["git"])
            taken_s += clock_s() - predicting_s
            # The time for identifying the data, reading the load and predicting does not count as
            # start-up.
            attempts.begin(
                folder, allocation, machine["git"], data, started_s + taken_s, prediction
            )
            arguments = workload.arguments(config, placement, folder)
            # Every node has configuration and folder itself.
            peers.begin(attempts.current(folder), arguments[2:])
        except BaseException:
            if restarted:
                ownership.release(folder)  # Keep the job's files: the next start resumes from them.
            else:
                ownership.disclaim(folder)
            raise
    except OSError as error:
        raise Refusal.of(failures.unwritable(folder, error)) from None
    return PreparedRun(workload, config, placement, folder, allocation, load, others, arguments)


def _with_profiler(config: RunConfig, placement: Placement) -> RunConfig:
    """Resolve `profile=auto` to the profiler that this machine has.

    Print a notice if that is kineto on a machine with CUDA, where nsys would record more.
    """
    profiled_config = nsys.resolve_auto(config, placement.device)
    if (
        profiled_config is not config
        and profiled_config.profile.name is ProfileName.kineto
        and placement.device == "cuda"
    ):
        message = Message(
            "profile.no-nsys",
            "profile=auto: nsys (Nsight Systems) is not on the PATH; torch's own profiler (kineto)"
            " is used, which does not record cudaEventDestroy, and holds all events in memory",
            key="profile",
        )
        say(message)
    return profiled_config


def _identify_data(
    workload: Workload, config: RunConfig, family: int | None
) -> tuple[DataContent, LoadMeter, float]:
    """Do the preparation that does not count as start-up.

    Returns:
        The fingerprint of the run's data, the machine's load from now on, and the seconds that both
        took.
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
    """Return the settings with which the ranks of this node start."""
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
    """Return True if torch binds ranks to their GPU's NUMA node, by the program `numactl`.

    This is not done under nsys: torch would ask for the GPU in this process, and that starts CUDA.
    """
    is_wanted = (
        config.numa is Numa.node
        and placement.device == "cuda"
        and config.profile.name is not ProfileName.nsys
    )
    return is_wanted and shutil.which("numactl") is not None
