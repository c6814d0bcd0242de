"""Train a small language model with Hugging Face's Trainer, as torchrun starts it.

pip install transformers accelerate
torchrun --nproc-per-node 2 examples/hf_trainer.py --max_steps 20
python measure_script.py -m gpus=1,2 \\
    script=examples/hf_trainer.py args.max_steps=20 args.bf16=false,true
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

LENGTH = 64  # bytes of a sample


class Bytes(torch.utils.data.Dataset):
    """The bytes of a file, in overlapping samples."""

    def __init__(self, path: Path) -> None:
        self.data = torch.tensor(list(path.read_bytes()))

    def __len__(self) -> int:
        return (len(self.data) - LENGTH) // 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.data[4 * index : 4 * index + LENGTH]
        return {"input_ids": row, "labels": row}


def main() -> None:
    with TemporaryDirectory() as folder:
        defaults = {
            "output_dir": folder,
            "report_to": "none",
            "save_strategy": "no",
            "per_device_train_batch_size": 8,
        }
        defaults |= {"use_cpu": not torch.cuda.is_available()}
        parser = HfArgumentParser(TrainingArguments)
        parser.set_defaults(**defaults)
        (arguments,) = parser.parse_args_into_dataclasses()
        config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)
        Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Bytes(Path(__file__))).train()


if __name__ == "__main__":
    main()
