"""MobileNetV2 on digits as PyTorch's DDP tutorial would write it, the reference for `benchmarks.overhead`.

It measures nothing but the wall time of each epoch's training, which rank 0 prints as a line of JSON.
"""

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import models
from torchvision.transforms import v2


class Digits(Dataset):
    def __init__(self, samples, image_size):
        digits: Any = load_digits()
        self.images = (digits.images[:samples] * (255 / 16)).round().astype("uint8")
        self.labels = digits.target[:samples]
        self.transform = v2.Compose(
            [
                v2.ToImage(),
                v2.RGB(),
                v2.Resize([image_size, image_size], antialias=True),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.305] * 3, [0.376] * 3),
            ]
        )

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(torch.from_numpy(self.images[index][None])), int(self.labels[index])


def train(rank, world_size, args):
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    if world_size > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dataset = Digits(args.samples, args.image_size)
    sampler = DistributedSampler(dataset, world_size, rank)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = models.mobilenet_v2(num_classes=10)
    if world_size > 1:
        model = DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        started = time.monotonic()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
        if rank == 0:
            print(json.dumps({"train_s": time.monotonic() - started, "steps": len(loader)}), flush=True)
    if world_size > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    for name, default in {"ranks": 1, "samples": 640, "image-size": 64, "batch-size": 32, "epochs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=29511)
    args = parser.parse_args()
    if args.ranks == 1:
        train(0, 1, args)
    else:
        mp.spawn(train, args=(args.ranks, args), nprocs=args.ranks)  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    main()
