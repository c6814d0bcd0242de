"""Define the workload of `tune_llm.py`. Imports neither torch nor torchtune."""

from multicard.config import llm, llm_models, llm_texts, llm_tokenizers
from multicard.config.base import PROFILES, PrecisionConfig
from multicard.config.llm import LlmConfig
from multicard.config.placement import Placement
from multicard.llm import (
    axes,
    engines,
    int4_missing,
    methods,
    preflight,
    summary,
    torchtune_config,
    waiting,
)
from multicard.llm.data.templates import TEMPLATES
from multicard.machine import environment
from multicard.records.schema import LlmRecord
from multicard.run.workload import Workload, untried


def describe(config: LlmConfig) -> list[str]:
    """Return the parts of a line that says what will run."""
    weights = "random weights" if config.model.weights == "random" else "its own weights"
    template = [f"template {config.template_name}"] if config.template_name else []
    options = [*template, config.method.name, config.precision.name, config.recipe_name]
    return [
        f"{config.model.name} ({weights}) on {config.dataset.name}",
        *options,
        f"batch {config.batch_size} a rank",
    ]


def advise(config: LlmConfig, placement: Placement, bound: str) -> str:
    """Return the option to try next if a run is bound by `bound`."""
    on_cuda = placement.device == "cuda"
    method = methods.chosen(config)
    compiles = on_cuda and engines.kind_of(config).compiles(config) and not config.compile
    packs = not config.packed and not method.pairs
    packing = waiting.packing_overrides(config)
    options = {
        "input": [(packing, packs)],
        "copy": [("pin_memory=true", not config.pin_memory)],
        "communication": [
            ("gradient_accumulation_steps=4", config.gradient_accumulation_steps == 1)
        ],
        "launch": [("compile=true", compiles), (packing, packs)],
        "compute": [
            ("precision=bf16", on_cuda and config.formats.products != "bf16"),
            ("activation_checkpointing=false", config.activation_checkpointing),
            ("compile=true", compiles),
            ("method=lora", not method.adapters),
            ("more GPUs" if on_cuda else "more cores", True),
        ],
    }
    return untried(options[bound], otherwise="a larger batch_size")


def fits(config: LlmConfig, placement: Placement) -> None:
    """Refuse options for which this machine lacks a compiler or a library."""
    if config.compile:
        environment.require_compilers(config.compile, placement.device)
    axes.fits(config, placement)


WORKLOAD = Workload(
    name="llm",
    entry="tune_llm.py",
    schema=LlmConfig,
    # no roles: for each group, the schema of each option.
    options={
        "method": {name: method.schema for name, method in methods.METHODS.items()},
        "template": dict.fromkeys(TEMPLATES, llm.TemplateConfig),
        "dataset": {name: facts.schema for name, facts in llm_texts.DATASETS.items()},
        "model": dict(llm_models.MODELS),
        "tokenizer": dict(llm_tokenizers.TOKENIZERS),
        "precision": dict.fromkeys(llm.PRECISIONS, PrecisionConfig),
        "profile": PROFILES,
    },
    work="multicard.llm.tune:tune",
    preload=("multicard.llm.tune", "pyarrow.parquet", "hydra.main"),
    cuda_preload=("multicard.llm.before_torchtune", "pyarrow.parquet", "hydra.main"),
    refuse=preflight.refuse,
    fits=fits,
    check=preflight.check_rows,
    data=preflight.data_parts,
    arguments=lambda config, placement, folder: (
        config,
        folder,
        torchtune_config.write(config, placement, folder),
    ),
    axes=summary.axes,
    describe=describe,
    record=LlmRecord,
    summarise=summary.summarise,
    advise=advise,
    explain=waiting.explain,
    unit="tokens",
    free=("dataset.columns",),
    notices=preflight.notices,
    note_failure_after_measurement=int4_missing.note_failed_scoring,
    nccl="cuda:nccl,cpu:gloo",  # torchtune reduces some counts on the host.
)
