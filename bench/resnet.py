#!/usr/bin/env python3
"""Channel and filter pruning of a ResNet-20, without fine-tuning.

    python bench/resnet.py DATA [--json FILE]

DATA holds resnet20-cifar10.safetensors and cifar10-test-2k.safetensors. Statistics
come from the first 128 images, without their labels; accuracy is on the last 1488. Two kinds of pruning, one convolution after the other, each on the inputs
that the network pruned so far gives:

* `filters`: a hidden channel of a residual block goes whole: a filter of its first
  convolution, its batch norm, and an input channel of its second convolution. One
  decision for all: blocks that are coupled. The batch norm is folded into the
  first convolution before, so that its rows are what the second one sees.
* `channels`: input channels of every convolution but the first.
"""

import argparse
import json
import os
import time

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import openwork
from openwork._layer_inputs import add_inputs

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CALIBRATION, TEST = 128, 1488
COUPLED = (
    "blocks first: block (1,_,_,_) & second perm (1,0,2,3): block (_,1,_,_) "
    "scope (_,1,1,1) keep {keep}%"
)
CHANNELS = "block (_,1,_,_) scope (1,_,1,1) keep {keep}%"


class Block(nn.Module):
    """Two convolutions and a shortcut; where it narrows, the shortcut takes every
    second pixel and pads channels with zeros (He et al. 2015, option A)."""

    def __init__(self, wide, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.pad = out - wide if stride == 2 else 0

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad // 2, self.pad // 2))
        return F.relu(x + y)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        stage = lambda wide, out, stride: nn.Sequential(
            Block(wide, out, stride), Block(out, out, 1), Block(out, out, 1))
        self.layer1, self.layer2, self.layer3 = stage(16, 16, 1), stage(16, 32, 2), stage(32, 64, 2)
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))

    def blocks(self):
        return [*self.layer1, *self.layer2, *self.layer3]


@torch.no_grad()
def accuracy(net, images, labels):
    right = sum((net(x).argmax(1) == y).sum().item() for x, y in zip(images.split(256), labels.split(256)))
    return right / len(labels)


def statistics(conv, x):
    """H of the patches that a convolution sees."""
    h = openwork.Hessian(conv.weight[0].numel())
    for part in x.split(32):
        add_inputs(h, conv, part)
    return h


def each(block, x):
    """A block on all images, some at a time."""
    return torch.cat([block(part) for part in x.split(64)])


@torch.no_grad()
def prune_filters(net, x, method, keep):
    x = each(lambda part: F.relu(net.bn1(net.conv1(part))), x)
    for block in net.blocks():
        conv, bn = block.conv1, block.bn1
        scale = (bn.weight / (bn.running_var + bn.eps).sqrt()).reshape(-1, 1, 1, 1)
        folded, second = conv.weight * scale, block.conv2.weight
        hidden = each(lambda part: F.relu(bn(conv(part))), x)
        hessian = {"first": statistics(conv, x), "second": statistics(block.conv2, hidden)}
        openwork.prune({"first": folded, "second": second}, COUPLED.format(keep=keep), method, hessian=hessian)
        gone = folded.flatten(1).abs().sum(1) == 0
        assert bool((second[:, gone] == 0).all()) and int((~gone).sum()) == round(len(gone) * keep / 100)
        conv.weight.copy_(torch.where(gone.reshape(-1, 1, 1, 1), 0.0, folded / scale))
        bn.weight[gone], bn.bias[gone] = 0.0, 0.0
        x = each(block, x)


@torch.no_grad()
def prune_channels(net, x, method, keep):
    x = each(lambda part: F.relu(net.bn1(net.conv1(part))), x)
    for block in net.blocks():
        spec = CHANNELS.format(keep=keep)
        openwork.prune(block.conv1.weight, spec, method, hessian=statistics(block.conv1, x))
        hidden = each(lambda part: F.relu(block.bn1(block.conv1(part))), x)
        openwork.prune(block.conv2.weight, spec, method, hessian=statistics(block.conv2, hidden))
        x = each(block, x)


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("data")
    asked.add_argument("--methods", default="magnitude,s-obd,s-obs")
    asked.add_argument("--keep", default="75,50")
    asked.add_argument("--json")
    asked = asked.parse_args()
    read = lambda name: load_file(os.path.join(asked.data, name))
    weights, data = read("resnet20-cifar10.safetensors"), read("cifar10-test-2k.safetensors")
    images = (data["images"].float() / 255 - torch.tensor(MEAN).reshape(3, 1, 1)) / torch.tensor(STD).reshape(3, 1, 1)
    labels = data["labels"].long()
    seen, images, labels = images[:CALIBRATION], images[-TEST:], labels[-TEST:]

    def fresh():
        net = ResNet20()
        net.load_state_dict(weights, strict=False)
        return net.eval()

    rows = [{"kind": "dense", "accuracy": accuracy(fresh(), images, labels)}]
    print(f"dense                        {rows[0]['accuracy']:.2%}")
    for kind, prune in (("filters", prune_filters), ("channels", prune_channels)):
        for keep in map(int, asked.keep.split(",")):
            for method in asked.methods.split(","):
                net, started = fresh(), time.monotonic()
                prune(net, seen, method, keep)
                row = {"kind": kind, "keep": keep, "method": method, "seconds": time.monotonic() - started,
                       "accuracy": accuracy(net, images, labels)}
                rows.append(row)
                print(f"{kind:9} keep {keep:3}% {method:10} {row['accuracy']:.2%}  ({row['seconds']:.1f} s)", flush=True)
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump({"images": len(labels), "calibration": CALIBRATION, "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
