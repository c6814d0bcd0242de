"""What makes a run one of LLM tuning. Imports neither torch nor torchtune."""

from pathlib import Path
from typing import Any

from multicard.config.llm import SCHEMAS, LlmConfig, MethodName
from multicard.config.placement import Placement
from multicard.controller.workload import Workload
from multicard.llm import summary, torchtune_config


def check(config: LlmConfig, _: Placement) -> None:
    """Read the rows and see that they, the tokenizer, the weights and the model fit each other.

    Raises:
        ValueError: with the key and the remedy.
    """
    torchtune_config.prepare(config)


def arguments(config: LlmConfig, placement: Placement, folder: Path) -> tuple[Any, ...]:
    return config, folder, torchtune_config.write(config, placement, folder)


def describe(config: LlmConfig, placement: Placement) -> str:
    """One line of what will run."""
    weights = "random weights" if config.model.weights == "random" else "its own weights"
    template = f", template {config.template_name}" if config.template_name else ""
    where = placement.ranks(config.gpus)
    return (
        f"{config.method.name} of {config.model.name} ({weights}) on {config.dataset.name}{template}, "
        f"{config.precision.name}, {config.recipe_name} on {where}, batch {config.batch_size} a rank"
    )


def advise(config: LlmConfig, placement: Placement, bound: str) -> str:
    """The option to try next where a run is bound by this."""
    on_cuda = placement.device == "cuda"
    compiles = on_cuda and not config.compile and config.method.name in (MethodName.lora, MethodName.qlora)
    options = {
        "input": [("packed=true", not config.packed and config.method.name is not MethodName.dpo)],
        "copy": [("pin_memory=true", not config.pin_memory)],
        "communication": [("gradient_accumulation_steps=4", config.gradient_accumulation_steps == 1)],
        "launch": [("compile=true", compiles), ("packed=true", not config.packed)],
        "compute": [
            ("precision=bf16", on_cuda and config.precision.name != "bf16"),
            ("activation_checkpointing=false", config.activation_checkpointing),
            ("compile=true", compiles),
            ("method=lora", config.method.name in (MethodName.full, MethodName.qat)),
            ("more GPUs", True),
        ],
    }[bound]
    return next((option for option, open_to_try in options if open_to_try), "a larger batch_size")


WORKLOAD = Workload(
    name="llm",
    entry="tune_llm.py",
    schema=LlmConfig,
    options=SCHEMAS,
    work="multicard.llm.tune:tune",
    preload=("multicard.llm.tune", "pyarrow.parquet", "hydra.main"),
    check=check,
    arguments=arguments,
    axes=summary.axes,
    describe=describe,
    summarise=summary.summarise,
    advise=advise,
    unit="tokens",
    nccl="cuda:nccl,cpu:gloo",  # torchtune reduces some counts on the host
)
