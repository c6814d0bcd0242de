"""A rank's part of a tuning run: have the engine ready, run it and measure it."""

import multicard.llm.before_torchtune  # noqa: F401  sets variables that the libraries below read when imported

# isort: split
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

# warns of C++ extensions for another torch; none is used
logging.getLogger("torchao").setLevel(logging.ERROR)
import torch.distributed as dist
import torchtune.datasets
import torchtune.models.llama3
import torchtune.models.llama3_2
import torchtune.models.qwen2_5
import torchtune.modules.loss
import torchtune.rlhf.loss
import torchtune.training.lr_schedulers
import torchtune.training.quantization  # noqa: F401  these are what recipes import: CPU ranks are forked with them
from omegaconf import DictConfig, OmegaConf
from torchtune import config as components

from multicard.config.llm import LlmConfig
from multicard.config.saving import TuningSave
from multicard.config.sweeps import pauses
from multicard.llm import (
    after_tuning,
    compiling,
    engines,
    held_out,
    int4_loss,
    model_writer,
    recipes,
    torchtune_config,
)
from multicard.llm.collectives import ReceivedBytes
from multicard.llm.method_options import DpoConfig
from multicard.llm.parts import TrainedParts
from multicard.llm.step_probe import (
    DivergenceError,
    Probe,
    ProbeEndedError,
    TargetReachedError,
)
from multicard.llm.tuning_engine import TuningEngine
from multicard.llm.tuning_report import TuningReport
from multicard.measure import garbage, memory
from multicard.messages import Message
from multicard.ranks.process import Rank
from multicard.records import run_folder
from multicard.records.schema_parts import SavedModel


def tune(rank: Rank, config: LlmConfig, folder: Path, cfg: dict[str, Any]) -> None:
    """Run the engine that `config` names and leave rank files and steps in `folder`.

    Args:
        cfg: torchtune's configuration, as in torchtune.yaml; other engines take rows,
            tokenizer and weights from it.
    """
    device = rank.device
    memory.reset_peak_memory(device)
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # torchtune takes its device from it
    if config.distributed and not dist.is_initialized():
        recipes.join_alone("gloo" if device.type == "cpu" else "cuda:nccl,cpu:gloo")

    report = TuningReport(rank, folder, config)
    probe = Probe(rank, config, report)
    traffic = ReceivedBytes()
    cache = folder / ".datasets"
    module = importlib.import_module(engines.MODULES[config.engine])
    engine: TuningEngine
    with (
        traffic.all_reduces(),
        module.prepared(probe, cfg, run_configuration(cfg, cache)) as engine,
    ):
        probe.steps_per_epoch = engine.steps_per_epoch
        if engine.scheduler is not None:
            probe.lr_now = lambda: engine.scheduler.get_last_lr()[0]
        # Recipes wait for the device in every step, so the host's clock times them.
        clock = torch.device("cpu")
        probe.progress.add_gate(config, clock, probe.steps_per_epoch, config.skip_steps)
        has_held_out = torchtune_config.held_out_file(folder).exists()
        if has_held_out and not config.probe.enabled:
            probe.held_out.evaluator = evaluator(engine, probe, cfg, traffic)
        report.built(engine.check_built() | {"vocabulary": cfg["model"]["vocab_size"]})
        if compiling.compiles(probe):
            report.content.compile_s = compiling.compile_now(engine, probe)
        traffic.watch(engine.model)
        if rank.world_size > 1:
            dist.barrier()
        traffic.clear()
        graphs = compiling.graphs(probe)
        with compiling.limited(config):
            to_its_end = train(engine, probe)
        report.content.late_graphs = (
            compiling.graphs(probe) - graphs if compiling.compiles(probe) else None
        )
        report.content.communication_bytes = traffic.counted()
        report.content.eight_bit_share = eight_bit_share(engine, config)
        report.peak()
        if probe.progress.gate is not None:
            report.content.probe = probe.progress.gate.result()
        report.content.profile = probe.window.close() or report.content.profile
        report.write()
        if config.save is not TuningSave.none and not probe.progress.is_stopped:
            report.content.saved = kept(engine.trained, probe, cfg, to_its_end)
            report.write()
        if to_its_end and probe.held_out.evaluator is not None:
            int4_loss.measure(probe.held_out.evaluator, config, report)
        if to_its_end:
            after_tuning.after_tuning(engine, probe)
    _clean_up(rank, engine, folder, cache)


def _clean_up(rank: Rank, engine: TuningEngine, folder: Path, cache: Path) -> None:
    if rank.rank == 0:
        shutil.rmtree(cache, ignore_errors=True)
        run_folder.remove_empty(folder / "tune_run")  # which the engines create
    if dist.is_initialized():
        dist.barrier()  # no rank closes its store while another still needs it
    engine.close()
    garbage.end()


def kept(
    trained: Callable[[], TrainedParts], probe: Probe, cfg: dict[str, Any], to_its_end: bool
) -> SavedModel:
    """Write what was tuned, which is over: no figure of the run counts it."""
    config = probe.config
    if to_its_end:
        return model_writer.keep(trained, config, cfg, probe.rank, probe.report.folder)
    said = f"save={config.save}: nothing was saved, as the training diverged"
    problem = Message("save.diverged", said, key="save", form=str(config.save))
    return SavedModel(form=str(config.save), problem=str(problem))


def train(engine: TuningEngine, probe: Probe) -> bool:
    """Measure the tuning. Returns True if it came to its end,
    neither diverged nor ended as a probe.
    """
    # a cell of a race trains until the race stops it
    epochs = sys.maxsize if pauses(probe.config) else probe.config.epochs
    garbage.begin()
    probe.start()
    probe.progress.begin()
    from_start = probe.window.recording
    with (
        after_tuning.named_phases(engine, probe, probe.window.ranges)
        if from_start
        else nullcontext()
    ):
        try:
            engine.train(epochs)
        except TargetReachedError:
            return True
        except (DivergenceError, ProbeEndedError):
            return False
    return True


def evaluator(
    engine: TuningEngine, probe: Probe, cfg: dict[str, Any], traffic: ReceivedBytes
) -> held_out.Evaluator:
    """What scores the held-out rows with the engine's model.
    Refuses (ValueError) rows that keep no label.
    """
    config = probe.config
    folder = probe.report.folder
    own = torchtune_config.held_out_rows(cfg, folder) | {"cache_dir": str(folder / ".datasets")}
    named: Any = OmegaConf.create({"tokenizer": cfg["tokenizer"], "dataset": own})
    rows = components.instantiate(named.dataset, components.instantiate(named.tokenizer))
    beta = config.method.beta if isinstance(config.method, DpoConfig) else None
    return held_out.Evaluator(
        probe.rank, engine, rows, config.batch_size, probe.pad_id, traffic, beta
    )


def eight_bit_share(engine: TuningEngine, config: LlmConfig) -> float | None:
    """Of the values that were updated, the share whose states have 8 bits;
    None with optimizer=adamw.
    """
    if not config.optimizer.has_8_bits:
        return None
    from multicard.llm import eight_bit  # it needs bitsandbytes, which comes with the extra `trl`

    (optimizer,) = engine.optimizers
    return eight_bit.share(optimizer)


def run_configuration(cfg: dict[str, Any], cache: Path) -> DictConfig:
    """torchtune's configuration with our logger, no memory figures,
    and the rows' cache in the run folder.
    """
    run_cfg = OmegaConf.create(cfg)
    run_cfg.metric_logger = {"_component_": "multicard.llm.torchtune_components.StepLog"}
    run_cfg.log_peak_memory_stats = False
    if run_cfg.dataset.source == "json":
        run_cfg.dataset.cache_dir = str(cache)
    return run_cfg
