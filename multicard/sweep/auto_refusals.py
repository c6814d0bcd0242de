"""Refuse automatic values that cannot be chosen here."""

from typing import Any

from multicard.config.job import Auto
from multicard.config.sweeps import is_elsewhere
from multicard.messages import Refusal, typed

REMEDIES = {
    Auto.gpus: "give the numbers, as `gpus=1,2`",
    Auto.batch_size: "give the size, as `batch_size=32`",
    Auto.max_seq_len: "give the length, as `max_seq_len=512`",
}


def refuse(config: Any, on_slurm: bool, packs: bool) -> None:
    """Refuse `auto` if it has no meaning, with the remedy.

    With `packs`, cells are processes on this machine. They run beside each other unless they want
    all of it.
    """
    key = config.auto
    folders = [
        word
        for word in config.hydra.overrides.hydra
        if word.startswith(("hydra.run.dir=", "hydra.sweep.dir="))
    ]
    if len(folders) == 1 and folders[0].startswith("hydra.run.dir="):
        sentence = f"{folders[0]}: {key}=auto makes a sweep; use `hydra.sweep.dir=FOLDER`"
        raise Refusal("auto.run-folder", sentence, key="hydra.run.dir", auto=key)
    if config.cpus_per_gpu < 1:
        value = config.cpus_per_gpu
        raise Refusal(
            "auto.cpus", f"cpus_per_gpu={value}: must be 1 or more", key="cpus_per_gpu", value=value
        )
    beside = packs and config.exclusive is False
    if key is Auto.gpus:
        _refuse_gpus(config, on_slurm, beside)
    else:
        _refuse_size(config, on_slurm, beside)


def _refuse_gpus(config: Any, on_slurm: bool, beside: bool) -> None:
    remedy = REMEDIES[Auto.gpus]
    if beside and config.max_jobs != 1:
        sentence = (
            "gpus=auto: cells that run beside each other are jobs of a plan; "
            f"use `{typed('-m multicard')} plan JOBS.yaml`, or {remedy}"
        )
        raise Refusal("auto.gpus-beside", sentence, key="gpus")
    if on_slurm:
        raise Refusal(
            "auto.gpus-of-slurm",
            f"gpus=auto: chooses for this machine, not for SLURM's nodes; {remedy}",
            key="gpus",
        )
    if is_elsewhere(config):
        sentence = f"gpus=auto: chooses for this machine, not for predict.gpu; {remedy}"
        raise Refusal("auto.gpus-elsewhere", sentence, key="gpus")
    if config.race.figure is not None:
        sentence = f"gpus=auto: chooses by predictions, but a race chooses by measuring; {remedy}"
        raise Refusal("auto.gpus-of-race", sentence, key="gpus")
    if config.probe.enabled:
        sentence = f"gpus=auto: chooses by predictions, which need the probes first; {remedy}"
        raise Refusal("auto.gpus-of-probe", sentence, key="gpus")


def _refuse_size(config: Any, on_slurm: bool, beside: bool) -> None:
    key = config.auto
    remedy = REMEDIES[config.auto]
    profile = str(config.profile.name)
    if key is Auto.batch_size and config.global_batch_size is not None:
        given_size = f"global_batch_size={config.global_batch_size}"
        sentence = (
            f"batch_size=auto: {given_size} already sets the samples of a step; leave it out, or"
            f" {remedy}"
        )
        raise Refusal(
            "auto.global-batch",
            sentence,
            key="batch_size",
            global_batch_size=config.global_batch_size,
        )
    if config.race.figure is not None:
        raise Refusal(
            "auto.size-of-race", f"{key}=auto: a race compares given sizes; {remedy}", key=key
        )
    if beside:
        sentence = f"{key}=auto: cells that run beside each other share their memory; {remedy}"
        raise Refusal("auto.size-beside", sentence, key=key)
    if profile != "none":
        sentence = (
            f"{key}=auto: a probe without a profile confirms the size; leave out profile={profile},"
            f" or {remedy}"
        )
        raise Refusal("auto.size-profiled", sentence, key=key, profile=profile)
    if on_slurm and not is_elsewhere(config):
        sentence = f"{key}=auto: SLURM's GPUs are not known; give `predict.gpu=GPU`, or {remedy}"
        raise Refusal("auto.size-of-slurm", sentence, key=key)
