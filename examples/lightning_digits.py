"""Train on digits with Lightning, which uses the ranks that torchrun started.

pip install lightning
torchrun --nproc-per-node 2 examples/lightning_digits.py --width 64
python measure_script.py -m gpus=1,2 \\
    script=examples/lightning_digits.py args.precision=32-true,bf16-mixed
"""

import argparse
import os

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = argparse.ArgumentParser()
options.add_argument("--width", type=int, default=64)
options.add_argument("--precision", default="32-true")
options.add_argument("--epochs", type=int, default=3)


class Digits(lightning.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    args = options.parse_args()
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        precision=args.precision,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        accelerator="auto",
        strategy="ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(args.width), DataLoader(data, 32, shuffle=True))


if __name__ == "__main__":
    main()
