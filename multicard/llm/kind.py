"""What makes a run one of LLM tuning. Imports neither torch nor torchtune."""

from pathlib import Path
from typing import Any

from multicard.config import Placement
from multicard.config_llm import LlmConfig
from multicard.llm import inputs, summary
from multicard.run import Kind


def check(config: LlmConfig) -> None:
    """Read the rows and see that they, the tokenizer, the weights and the model fit each other.

    Raises:
        ValueError: with the key and the remedy.
    """
    inputs.prepare(config)


def arguments(config: LlmConfig, placement: Placement, folder: Path) -> tuple[Any, ...]:
    return config, folder, inputs.write(config, placement, folder)


def describe(config: LlmConfig, placement: Placement) -> str:
    """One line of what will run."""
    weights = "random weights" if config.model.weights == "random" else "its own weights"
    template = f", template {config.template_name}" if config.template_name else ""
    where = placement.ranks(config.gpus)
    return (
        f"{config.method.name} of {config.model.name} ({weights}) on {config.dataset.name}{template}, "
        f"{config.precision.name}, {config.recipe_name} on {where}, batch {config.batch_size} a rank"
    )


KIND = Kind(
    name="llm",
    work="multicard.llm.tune:tune",
    preload=("multicard.llm.tune", "pyarrow.parquet", "hydra.main"),
    check=check,
    arguments=arguments,
    axes=summary.axes,
    describe=describe,
    summarise=summary.summarise,
    unit="tokens",
    nccl="cuda:nccl,cpu:gloo",  # torchtune reduces some counts on the host
)
