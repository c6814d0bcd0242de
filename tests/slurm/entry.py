"""`train_vision.py` with ranks that end as `seed` says: see work.py."""

import sys
from dataclasses import replace

import hydra
from omegaconf import DictConfig

from multicard import command, config, config_vision, run
from multicard.vision import kind

config.register()
KIND = replace(kind.KIND, work="tests.slurm.work:train")


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train_vision")
def main(cfg: DictConfig) -> None:
    run.cell(KIND, cfg)


if __name__ == "__main__":
    sys.exit(
        command.execute(main, KIND, config_vision.VisionConfig, config_vision.SCHEMAS, config_vision.ExperimentName)
    )
