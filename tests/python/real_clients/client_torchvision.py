"""torchvision: `resnet` trains one on images of several sizes, `detector` a detector with nms."""

import sys

import torch
import torchvision

from tests.python.client_program import measure

STEPS = 6
# Images in a batch, and their side.
SIZES = ((8, 96), (4, 160), (12, 64))


def train_resnet():
    model = torchvision.models.resnet50(weights=None, num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    shapes = []
    for step in range(STEPS):
        batch, side = SIZES[step % len(SIZES)]
        images = torch.zeros(batch, 3, side, side, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(images)
        wanted = torch.arange(batch, device="cuda") % 10
        torch.nn.functional.cross_entropy(scores.float(), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        shapes.append([list(scores.shape), str(scores.dtype)])
    return {"shapes": shapes, "states": len(optimizer.state)}


def boxes_of(index, side):
    corner = torch.tensor([[4.0, 4.0, 40.0, 40.0], [20.0, 30.0, 60.0, 90.0]], device="cuda")
    return {"boxes": corner + index % 5, "labels": torch.tensor([1, 2], device="cuda")}


def train_detector():
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=4
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = set()
    for step in range(STEPS):
        batch, side = SIZES[step % len(SIZES)]
        images = [torch.zeros(3, side, side, device="cuda") for _ in range(batch)]
        found = model(images, [boxes_of(index, side) for index in range(batch)])
        losses |= set(found)
        sum(found.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model([torch.zeros(3, 96, 96, device="cuda") for _ in range(2)])
    return {
        "losses": sorted(losses),
        "found": [sorted(each) for each in found],
        "kept": kept_by_nms(),
    }


def kept_by_nms():
    """Two boxes of three overlap, in one of two classes."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60]], device="cuda")
    scores = torch.tensor([0.8, 0.9, 0.7], device="cuda")
    classes = torch.tensor([0, 0, 1], device="cuda")
    nms = torchvision.ops.nms(boxes, scores, 0.5)
    return [nms.tolist(), torchvision.ops.batched_nms(boxes, scores, classes, 0.5).tolist()]


torch.manual_seed(0)
measure(train_resnet if sys.argv[2] == "resnet" else train_detector)
