"""What a run needs beside its configuration, prepared in the controller: rows, tokenizer, and torchtune's own YAML."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.llm import (
    DpoConfig,
    Llama3TokenizerConfig,
    LlmConfig,
    LoraConfig,
    MethodName,
    QatConfig,
    StoredTextConfig,
    TemplateName,
    TextName,
)
from multicard.config.placement import Placement
from multicard.llm import preflight
from multicard.llm.data import row_sources, tokenizer
from multicard.records import run_folder

SAMPLE = 2000  # rows that the embedded tokenizer is trained on, at most
LONGEST_WARMUP = 100  # steps, as the papers had it


@dataclass(frozen=True)
class Inputs:
    """`rows` is None for a whole data set of the hub; `ranks` are the embedded tokenizer's tokens, where it is used."""

    rows: list[row_sources.Row] | None
    ranks: list[bytes] | None
    vocabulary: int


_LAST: dict[str, Inputs] = {}  # by identity: `check` and `write` need the same


def prepare(config: LlmConfig) -> Inputs:
    """Read or make the rows, train the tokenizer, and see that all of it fits the model.

    Raises:
        ValueError: what does not, with the key and the remedy.
    """
    key = config.identity()
    if key not in _LAST:
        preflight.check_method(config)
        if isinstance(config.tokenizer, Llama3TokenizerConfig):
            tokenizer.check_llama3(config.tokenizer)
        rows = row_sources.load(config)
        if rows is not None and not config.packed:
            preflight.check_steps(config, len(rows))
        ranks, own = None, preflight.embedded(config)
        if own is not None:
            sample = row_sources.sample(config, SAMPLE) if rows is None else rows[:SAMPLE]
            headers = [role for role in tokenizer.ROLES for _ in sample]
            ranks = tokenizer.train([*row_sources.texts(config, sample), *headers], own.vocab_size)
        vocabulary = preflight.vocabulary(config, len(ranks or []))
        preflight.check_weights(config.model, vocabulary)
        _LAST.clear()
        _LAST[key] = Inputs(rows, ranks, vocabulary)
    return _LAST[key]


def write(config: LlmConfig, placement: Placement, folder: Path) -> dict[str, Any]:
    """Write rows and tokenizer to `folder/inputs`, and torchtune's configuration to `folder/torchtune.yaml`.

    Returns:
        That configuration. `lr_scheduler.num_warmup_steps` is None where only torchtune will know the number of steps.
    """
    inputs = prepare(config)
    place = folder / "inputs"
    if inputs.rows is not None:
        run_folder.write_text(place / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in inputs.rows))
    if inputs.ranks is not None:
        run_folder.write_text(place / "tokenizer.tiktoken", tokenizer.tiktoken_lines(inputs.ranks))
        run_folder.write_json(place / "special_tokens.json", tokenizer.special_tokens(len(inputs.ranks)))
    cfg = torchtune_config(config, placement.device, inputs, _from_here(folder))
    write_yaml(config, cfg, folder)
    return cfg


def write_yaml(config: LlmConfig, cfg: dict[str, Any], folder: Path) -> None:
    """Write torchtune's configuration, headed by the command that runs it from the project's root."""
    from omegaconf import OmegaConf

    ranks = f"--nproc_per_node {config.gpus} " if config.distributed else ""
    head = f"# PYTHONPATH=. tune run {ranks}{config.recipe_name} --config {_from_here(folder) / 'torchtune.yaml'}\n"
    run_folder.write_text(folder / "torchtune.yaml", head + OmegaConf.to_yaml(OmegaConf.create(cfg)))


def _from_here(folder: Path) -> Path:
    """The folder seen from where the command was typed, where it is below that: such a record can be moved."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def warmup_steps(config: LlmConfig, total: int) -> int:
    """Those of the learning rate: as given, or the papers' 100, or a tenth of a short run."""
    return config.warmup_steps if config.warmup_steps is not None else min(LONGEST_WARMUP, max(1, total // 10))


def torchtune_config(config: LlmConfig, device: str, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """The same run in torchtune's own terms: `tune run <recipe> --config torchtune.yaml`."""
    method = config.method
    model = model_component(config, inputs.vocabulary)
    rows = None if inputs.rows is None or config.packed else len(inputs.rows)
    cfg: dict[str, Any] = {
        "output_dir": str(folder / "tune_run"),
        "model": model,
        "tokenizer": _tokenizer(config, folder),
        "checkpointer": _checkpointer(config, model, folder),
        "dataset": _dataset(config, inputs, folder),
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": str(folder / "tune_run" / "logs"),
        },
        "optimizer": {
            "_component_": "torch.optim.AdamW",
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "fused": True,
        },
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "device": device,
        "dtype": config.precision.name,
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
        "resume_from_checkpoint": False,
        "save_adapter_weights_only": isinstance(method, LoraConfig),
        "log_every_n_steps": 1,
        "log_peak_memory_stats": device == "cuda",
    }
    if isinstance(method, DpoConfig):
        cfg["loss"] = {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": method.beta, "label_smoothing": 0}
    if isinstance(method, QatConfig):
        quantizer = "torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer"
        return cfg | {"quantizer": {"_component_": quantizer, "groupsize": method.groupsize}}
    steps = None if rows is None else config.epochs * preflight.steps_per_epoch(config, rows)
    warmup = config.warmup_steps if steps is None else warmup_steps(config, steps)
    schedule = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
    return cfg | {"lr_scheduler": {"_component_": schedule, "num_warmup_steps": warmup}}


def model_component(config: LlmConfig, vocabulary: int) -> dict[str, Any]:
    model, method = config.model, config.method
    builder = "llama3_2" if model.tied else "llama3"
    component: dict[str, Any] = {"_component_": f"torchtune.models.{builder}.{builder}"}
    if isinstance(method, LoraConfig):
        component = {
            "_component_": f"torchtune.models.{builder}.lora_{builder}",
            "lora_attn_modules": list(method.lora_attn_modules),
            "apply_lora_to_mlp": method.apply_lora_to_mlp,
            "apply_lora_to_output": method.apply_lora_to_output,
            "lora_rank": method.lora_rank,
            "lora_alpha": method.lora_alpha,
            "lora_dropout": method.lora_dropout,
            "quantize_base": method.name is MethodName.qlora,
        }
    sizes = ("num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len")
    return component | {"vocab_size": vocabulary} | {key: getattr(model, key) for key in sizes}


def _tokenizer(config: LlmConfig, folder: Path) -> dict[str, Any]:
    component: dict[str, Any] = {
        "_component_": "torchtune.models.llama3.llama3_tokenizer",
        "max_seq_len": config.max_seq_len or config.model.max_seq_len,
        "prompt_template": _prompt_template(config),
    }
    if isinstance(config.tokenizer, Llama3TokenizerConfig):
        return component | {"path": str(Path(config.tokenizer.path or "").expanduser())}
    own = {"path": "tokenizer.tiktoken", "special_tokens_path": "special_tokens.json"}
    return component | {key: str(folder / "inputs" / name) for key, name in own.items()}


def _prompt_template(config: LlmConfig) -> str | dict[str, list[str]] | None:
    dpo = config.method.name is MethodName.dpo
    if config.template_name is TemplateName.instruct:
        return {"user": list(row_sources.INSTRUCT_PAIRS)} if dpo else None  # Alpaca's is inside its data set
    known = {
        TemplateName.grammar: "torchtune.data.GrammarErrorCorrectionTemplate",
        TemplateName.summarize: "torchtune.data.SummarizeTemplate",
    }
    return None if config.template_name is None else known[config.template_name]


BUILDERS: dict[TemplateName | None, str] = {
    TemplateName.instruct: "alpaca_cleaned_dataset",
    TemplateName.grammar: "grammar_dataset",
    TemplateName.summarize: "samsum_dataset",
    None: "slimorca_dataset",
}


def _dataset(config: LlmConfig, inputs: Inputs, folder: Path) -> dict[str, Any]:
    chosen = config.dataset
    dpo = config.method.name is MethodName.dpo
    builder = "preference_dataset" if dpo else BUILDERS[config.template_name]
    component: dict[str, Any] = {"_component_": f"torchtune.datasets.{builder}", "split": "train"}
    if not dpo:
        component["packed"] = config.packed
    if inputs.rows is None:
        assert isinstance(chosen, StoredTextConfig) and chosen.name is not TextName.preference
        return component | {"source": chosen.source}
    return component | {"source": "json", "data_files": str(folder / "inputs" / "rows.jsonl")}


def _checkpointer(config: LlmConfig, model: dict[str, Any], folder: Path) -> dict[str, Any]:
    family = "LLAMA3_2" if config.model.tied else "LLAMA3"
    if config.model.weights == preflight.RANDOM:
        like = {key: value for key, value in model.items() if key != "quantize_base"}
        component = {
            "_component_": "multicard.llm.torchtune_components.RandomCheckpointer",
            "model": like,
            "seed": config.seed,
        }
        return component | {"model_type": family}
    source = Path(config.model.weights).expanduser()
    hugging_face = sorted(path.name for path in source.glob("*.safetensors"))
    kind = "FullModelHFCheckpointer" if hugging_face else "FullModelMetaCheckpointer"
    return {
        "_component_": f"torchtune.training.{kind}",
        "checkpoint_dir": str(source),
        "checkpoint_files": hugging_face or ["consolidated.00.pth"],
        "model_type": family,
        "output_dir": str(folder / "tune_run"),
    }
