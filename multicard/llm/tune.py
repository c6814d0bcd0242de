"""Run one rank of a tuning run: prepare the engine, train with it, and measure the steps."""

import multicard.llm.before_torchtune  # noqa: F401  Sets variables that the libraries below read on import.

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

# torchao warns about C++ extensions that were built for another torch. multicard uses none.
logging.getLogger("torchao").setLevel(logging.ERROR)
import torch.distributed as dist
import torchtune.datasets
import torchtune.models.llama3
import torchtune.models.llama3_2
import torchtune.models.qwen2_5
import torchtune.modules.loss
import torchtune.rlhf.loss
import torchtune.training.lr_schedulers
import torchtune.training.quantization  # noqa: F401  Recipes import these modules. Imported here, CPU ranks inherit them when they are forked.
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
    """Run the engine that `config` selects, and write this rank's files and steps to `folder`.

    Args:
        cfg: torchtune's configuration, as in torchtune.yaml. Other engines only read the rows, the
            tokenizer and the weights from it.
    """
    device = rank.device
    memory.reset_peak_memory(device)
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # torchtune chooses its device by this.
    if config.distributed and not dist.is_initialized():
        recipes.join_alone("gloo" if device.type == "cpu" else "cuda:nccl,cpu:gloo")

    report = TuningReport(rank, folder, config)
    probe = Probe(rank, config, report)
    traffic = ReceivedBytes()
    cache = folder / ".datasets"
    engine_module = importlib.import_module(engines.kind_of(config).module)
    engine: TuningEngine
    with (
        traffic.all_reduces(),
        engine_module.prepared(probe, cfg, run_configuration(cfg, cache)) as engine,
    ):
        probe.steps_per_epoch = engine.steps_per_epoch
        if engine.scheduler is not None:
            probe.lr_now = lambda: engine.scheduler.get_last_lr()[0]
        # The host's clock suffices: recipes wait for the device each step.
        clock = torch.device("cpu")
        probe.progress.add_gate(config, clock, probe.steps_per_epoch, config.skip_steps)
        has_held_out = torchtune_config.held_out_file(folder).exists()
        if has_held_out and not config.probe.enabled:
            probe.held_out.evaluator = held_out_evaluator(engine, probe, cfg, traffic)
        report.add_model(engine.check_built() | {"vocabulary": cfg["model"]["vocab_size"]})
        if compiling.compiles(probe):
            report.content.compile_s = compiling.compile_now(engine, probe)
        traffic.watch(engine.model)
        if rank.world_size > 1:
            dist.barrier()
        traffic.clear()
        graphs_before = compiling.count_graphs(probe)
        with compiling.limit_recompiles(config):
            has_completed = train(engine, probe)
        report.content.late_graphs = (
            compiling.count_graphs(probe) - graphs_before if compiling.compiles(probe) else None
        )
        report.content.communication_bytes = traffic.rounded_counts()
        report.content.eight_bit_share = eight_bit_share(engine, config)
        report.update_peak()
        if probe.progress.gate is not None:
            report.content.probe = probe.progress.gate.result()
        report.content.profile = probe.window.close() or report.content.profile
        report.write()
        if config.save is not TuningSave.none and not probe.progress.is_stopped:
            report.content.saved = save_tuned_weights(engine.trained, probe, cfg, has_completed)
            report.write()
        if has_completed and probe.held_out.evaluator is not None:
            int4_loss.measure(probe.held_out.evaluator, config, report)
        if has_completed:
            after_tuning.after_tuning(engine, probe)
    _clean_up(rank, engine, folder, cache)


def _clean_up(rank: Rank, engine: TuningEngine, folder: Path, cache: Path) -> None:
    if rank.rank == 0:
        shutil.rmtree(cache, ignore_errors=True)
        run_folder.remove_empty(folder / "tune_run")  # The engines create it.
    if dist.is_initialized():
        dist.barrier()  # A rank must not close its store while another still needs it.
    engine.close()
    garbage.end()


def save_tuned_weights(
    trained: Callable[[], TrainedParts], probe: Probe, cfg: dict[str, Any], has_completed: bool
) -> SavedModel:
    """Write the tuned weights. The run is over, so none of its figures includes this work."""
    config = probe.config
    if has_completed:
        return model_writer.write_trained(trained, config, cfg, probe.rank, probe.report.folder)
    sentence = f"save={config.save}: nothing was saved, because the training diverged"
    problem = Message("save.diverged", sentence, key="save", form=str(config.save))
    return SavedModel(form=str(config.save), problem=str(problem))


def train(engine: TuningEngine, probe: Probe) -> bool:
    """Train with the engine and measure its steps.

    Returns:
        True if the training ended regularly or reached its target. False if it diverged, or was
        a probe.
    """
    # A cell of a race trains until the race stops it.
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


def held_out_evaluator(
    engine: TuningEngine, probe: Probe, cfg: dict[str, Any], traffic: ReceivedBytes
) -> held_out.Evaluator:
    """Return the evaluator that scores the held-out rows with the engine's model.

    Raises:
        ValueError: None of the held-out rows has a label.
    """
    config = probe.config
    folder = probe.report.folder
    dataset_component = torchtune_config.held_out_rows(cfg, folder) | {
        "cache_dir": str(folder / ".datasets")
    }
    component_configs: Any = OmegaConf.create(
        {"tokenizer": cfg["tokenizer"], "dataset": dataset_component}
    )
    rows = components.instantiate(
        component_configs.dataset, components.instantiate(component_configs.tokenizer)
    )
    beta = config.method.beta if isinstance(config.method, DpoConfig) else None
    return held_out.Evaluator(
        probe.rank, engine, rows, config.batch_size, probe.pad_id, traffic, beta
    )


def eight_bit_share(engine: TuningEngine, config: LlmConfig) -> float | None:
    """Return the share of the updated values whose optimizer states have 8 bits.

    Returns None with optimizer=adamw.
    """
    if not config.optimizer.has_8_bits:
        return None
    from multicard.llm import eight_bit  # It needs bitsandbytes, which the extra `trl` installs.

    (optimizer,) = engine.optimizers
    return eight_bit.share_in_8_bits(optimizer)


def run_configuration(cfg: dict[str, Any], cache: Path) -> DictConfig:
    """Return torchtune's configuration for this run.

    It has our logger and no memory figures, and caches the rows in the run folder.
    """
    run_cfg = OmegaConf.create(cfg)
    run_cfg.metric_logger = {"_component_": "multicard.llm.torchtune_components.StepLog"}
    run_cfg.log_peak_memory_stats = False
    if run_cfg.dataset.source == "json":
        run_cfg.dataset.cache_dir = str(cache)
    return run_cfg
