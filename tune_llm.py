"""Tunes Llama 3 with torchtune and measures it: `python tune_llm.py method=qlora gpus=2`, or `-m` for a sweep."""

import sys

import hydra
from omegaconf import DictConfig

from multicard import command, config, config_llm, run
from multicard.llm.kind import KIND

config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="tune_llm")
def main(cfg: DictConfig) -> None:
    run.cell(KIND, cfg)


if __name__ == "__main__":
    sys.exit(command.execute(main, KIND, config_llm.LlmConfig, config_llm.SCHEMAS, config_llm.ExperimentName))
