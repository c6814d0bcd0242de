"""Train on digits with DistributedDataParallel: a plain PyTorch script, as torchrun starts it.

The script does not depend on multicard.

torchrun --nproc-per-node 2 examples/ddp_digits.py --precision bf16
python measure_script.py -m script=examples/ddp_digits.py args.precision=fp32,bf16 gpus=1,2
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

options = argparse.ArgumentParser()
options.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
options.add_argument("--batch-size", type=int, default=32)
options.add_argument("--epochs", type=int, default=3)
options.add_argument("--lr", type=float, default=1e-3)


def main() -> None:
    args = options.parse_args()
    has_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_cuda else "gloo")
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_cuda else torch.device("cpu")
    )
    torch.manual_seed(0)

    pixels, labels = load_digits(return_X_y=True)  # 1797 images of 8 x 8
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    data = TensorDataset(images, torch.tensor(labels))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    sampler = DistributedSampler(train)
    batches = DataLoader(train, args.batch_size, sampler=sampler, pin_memory=has_cuda)

    layers = [
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    ]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                outputs = model(inputs.to(device, non_blocking=True))
                loss = nn.functional.cross_entropy(outputs, targets.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(x.to(device)).argmax(1).cpu() == y).sum())
                for x, y in DataLoader(test, 256)
            )
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right / len(test):.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
