"""Write a run's inputs in torchtune's terms: `torchtune.yaml`, and its rows and tokenizer."""

import json
from pathlib import Path
from typing import Any

from multicard.config.llm import PAPERS_WARMUP, LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import DATASETS, ChatConfig, StoredTextConfig
from multicard.config.placement import Placement
from multicard.llm import engines, methods, models, preflight
from multicard.llm.data import templates, tokenizer
from multicard.records import run_folder


def write(config: LlmConfig, placement: Placement, folder: Path) -> dict[str, Any]:
    """Write the rows and the tokenizer to `folder/inputs`.

    With `engine=torchtune`, also write torchtune's configuration to `folder/torchtune.yaml`.

    Returns:
        The configuration. `lr_scheduler.num_warmup_steps` is None if only torchtune will know the
        number of steps.
    """
    inputs = preflight.prepare(config)
    if inputs.rows is not None:
        rows = "".join(json.dumps(row) + "\n" for row in inputs.rows)
        run_folder.write_text(folder / "inputs" / "rows.jsonl", rows)
    if inputs.held_out is not None:
        run_folder.write_text(held_out_file(folder), inputs.held_out.lines(inputs.are_trained))
    if inputs.token_ranks is not None:
        run_folder.write_text(
            folder / "inputs" / "tokenizer.tiktoken", tokenizer.tiktoken_lines(inputs.token_ranks)
        )
        special = tokenizer.special_tokens(len(inputs.token_ranks))
        run_folder.write_json(folder / "inputs" / "special_tokens.json", special)
    if isinstance(config.model, HfConfig):
        return folder_config(config, inputs, folder)
    cfg = torchtune_config(config, placement.device, inputs, _relative_to_cwd(folder))
    if engines.kind_of(config).has_recipes:
        write_yaml(config, cfg, folder)
    return cfg


def held_out_file(folder: Path) -> Path:
    """Return the path of the held-out rows. There is no such file if all rows are trained on."""
    return folder / "inputs" / "held_out.jsonl"


def held_out_rows(cfg: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the component that reads the rows in `held_out_file`.

    They are read in the same way as the training rows, but are not packed.
    """
    # These values describe the training rows only.
    training_counts = ("broken", "equal", "ignored", "last_alone", "revision")
    component = {
        name: value for name, value in cfg["dataset"].items() if name not in training_counts
    }
    return component | {
        "packed": False,
        "is_held_out": True,
        "source": "json",
        "data_files": str(held_out_file(folder)),
    }


def folder_config(config: LlmConfig, inputs: preflight.Inputs, folder: Path) -> dict[str, Any]:
    """Return the rows and the tokenizer of `model=hf` as torchtune's components."""
    assert isinstance(config.model, HfConfig)
    # A model without a limit of positions has the limit 0.
    limit = config.max_seq_len or config.model.max_seq_len or None
    tokenizer_component = {
        "_component_": "multicard.llm.data.tokenizer.FolderTokenizer",
        "path": config.model.path,
    }
    rows = _dataset(config, inputs, folder)
    rows["builder"] = (
        f"multicard.llm.labelled_rows.{'ChatPairs' if methods.chosen(config).pairs else 'chats'}"
    )
    return {
        "model": {"vocab_size": inputs.vocabulary},
        "tokenizer": tokenizer_component | {"max_seq_len": limit},
        "dataset": rows,
    }


def write_yaml(config: LlmConfig, cfg: dict[str, Any], folder: Path) -> None:
    """Write torchtune's configuration.

    Its first line is the command that runs it from the project's root.
    """
    from omegaconf import OmegaConf

    processes_option = f"--nproc_per_node {config.gpus} " if config.distributed else ""
    path = _relative_to_cwd(folder) / "torchtune.yaml"
    first_line = f"# PYTHONPATH=. tune run {processes_option}{config.recipe_name} --config {path}\n"
    run_folder.write_text(
        folder / "torchtune.yaml", first_line + OmegaConf.to_yaml(OmegaConf.create(cfg))
    )


def _relative_to_cwd(folder: Path) -> Path:
    """Return the folder relative to the working directory if it lies below it.

    The record can then be moved.
    """
    working_directory = Path.cwd()
    return (
        folder.relative_to(working_directory)
        if folder.is_relative_to(working_directory)
        else folder
    )


def torchtune_config(
    config: LlmConfig, device: str, inputs: preflight.Inputs, folder: Path
) -> dict[str, Any]:
    """Return the configuration for `tune run <recipe> --config torchtune.yaml`."""
    method = methods.chosen(config)
    model = methods.model_component(config, inputs.vocabulary)
    template = templates.chosen(config)
    prompt_template = template and (
        template.pair_template if method.pairs else template.prompt_template
    )
    cfg: dict[str, Any] = {
        "output_dir": str(folder / "tune_run"),
        "model": model,
        "tokenizer": {
            **tokenizer.component(config.tokenizer, folder / "inputs"),
            "max_seq_len": config.max_seq_len or config.model.max_seq_len,
            "prompt_template": prompt_template,
        },
        "checkpointer": _checkpointer(config, model, device, folder),
        "dataset": _dataset(config, inputs, folder),
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": str(folder / "tune_run" / "logs"),
        },
        "optimizer": optimizer(config),
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "device": device,
        "dtype": config.formats.weights,
        "seed": config.seed,
        "shuffle": True,
        "epochs": config.epochs,
        "max_steps_per_epoch": config.max_steps,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "enable_activation_checkpointing": config.activation_checkpointing,
        "enable_activation_offloading": False,
        "compile": config.compile,
        "optimizer_in_bwd": config.optimizer_in_bwd,
        "clip_grad_norm": config.clip_grad_norm,
        "custom_sharded_layers": list(config.custom_sharded_layers) or None,
        "fsdp_cpu_offload": config.offloads,
        "resume_from_checkpoint": False,
        "save_adapter_weights_only": method.adapters,
        "log_every_n_steps": 1,
        "log_peak_memory_stats": device == "cuda",
        **method.components(config.method),
    }
    if method.scheduled:
        # If the number of rows is None, only torchtune will know it.
        rows = None if inputs.rows is None or config.packed else len(inputs.rows)
        steps = None if rows is None else config.epochs * steps_per_epoch(config, rows)
        cfg["lr_scheduler"] = {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": (
                config.warmup_steps if steps is None else warmup_steps(config, steps)
            ),
        }
    return cfg


def optimizer(config: LlmConfig) -> dict[str, Any]:
    """Return the component of the optimizer."""
    common = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer.has_8_bits:
        component = {"_component_": "multicard.llm.eight_bit.AdamW8bit"}
        return component | common | {"is_paged": config.optimizer.is_paged}
    return {"_component_": "torch.optim.AdamW"} | common | {"fused": True}


def steps_per_epoch(config: LlmConfig, rows: int) -> int:
    """Return the number of steps in an epoch, as torchtune's recipes count them.

    The sampler repeats rows until all ranks have the same number. Incomplete batches and
    accumulations are dropped.
    """
    steps = -(-rows // config.world_size) // config.batch_size // config.gradient_accumulation_steps
    return min(steps, config.max_steps or steps)


def warmup_steps(config: LlmConfig, total: int) -> int:
    """Return the number of warm-up steps of the learning rate.

    If it is not configured, it is the papers' 100, or a tenth of a run below 1000 steps.
    """
    return (
        config.warmup_steps
        if config.warmup_steps is not None
        else min(PAPERS_WARMUP, max(1, total // 10))
    )


def _dataset(config: LlmConfig, inputs: preflight.Inputs, folder: Path) -> dict[str, Any]:
    template = templates.chosen(config)
    builder = f"torchtune.datasets.{template.builder if template else 'slimorca_dataset'}"
    if methods.chosen(config).pairs:
        builder = "multicard.llm.labelled_rows.pairs"
    elif template and DATASETS[config.dataset.name].conversations:
        builder = "multicard.llm.labelled_rows.conversations"
    elif isinstance(config.dataset, ChatConfig):
        builder = "multicard.llm.labelled_rows.chats"
    component: dict[str, Any] = {
        "_component_": "multicard.llm.labelled_rows.dataset",
        "builder": builder,
        "split": "train",
        "packed": config.packed,
        # A model without a limit of positions has the limit 0.
        "model_limit": config.model.max_seq_len or None,
    } | inputs.dataset_arguments
    if inputs.rows is None:
        assert isinstance(config.dataset, StoredTextConfig)
        revision = {} if config.dataset.revision is None else {"revision": config.dataset.revision}
        return component | {"source": config.dataset.source} | revision
    return component | {"source": "json", "data_files": str(folder / "inputs" / "rows.jsonl")}


def _checkpointer(
    config: LlmConfig, model: dict[str, Any], device: str, folder: Path
) -> dict[str, Any]:
    model_type = models.family(config.model).checkpoint
    if config.model.weights == models.RANDOM:
        return {
            "_component_": "multicard.llm.torchtune_components.RandomCheckpointer",
            "model": {key: value for key, value in model.items() if key != "quantize_base"},
            "seed": config.seed,
            "dtype": config.formats.weights,
            "device": device,
            "model_type": model_type,
        }
    source = Path(config.model.weights).expanduser()
    return {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": str(source),
        "checkpoint_files": sorted(path.name for path in source.glob("*.safetensors")),
        "model_type": model_type,
        "output_dir": str(folder / "tune_run"),
    }
