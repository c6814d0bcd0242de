"""Trains and measures image recognition: `python train_vision.py precision=bf16 gpus=2`, or `-m` for a sweep."""

import sys

import hydra
from omegaconf import DictConfig

from multicard import command, config, config_vision, run
from multicard.vision.kind import KIND

config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="train_vision")
def main(cfg: DictConfig) -> None:
    run.cell(KIND, cfg)


if __name__ == "__main__":
    sys.exit(
        command.execute(main, KIND, config_vision.VisionConfig, config_vision.SCHEMAS, config_vision.ExperimentName)
    )
