"""Layers that cuDNN runs on the simulated GPU, compared with the same layers on the host.

Prints the differences, the warnings, and the operations that were not simulated.
"""

import json

import torch
from torch import nn

from ferro_alloc import sim


def run(make, values, last, device):
    torch.manual_seed(0)
    module = make().to(device)
    values = values.to(device)
    if last:
        module = module.to(memory_format=torch.channels_last)
        values = values.to(memory_format=torch.channels_last)
    values = values.detach().requires_grad_()
    output = module(values)
    torch.manual_seed(1)
    output.backward(torch.randn(output.shape).to(device))
    found = {"output": output.detach(), "input": values.grad, **dict(module.named_buffers())}
    return found | {name: p.grad for name, p in module.named_parameters()}


image, volume, sound = torch.randn(2, 8, 10, 10), torch.randn(2, 8, 5, 5, 5), torch.randn(2, 8, 10)
CASES = {
    "convolution": (lambda: nn.Conv2d(8, 4, 3, padding=1), image),
    "strided": (lambda: nn.Conv2d(8, 4, 3, stride=2, dilation=2), image),
    "grouped": (lambda: nn.Conv2d(8, 16, 3, groups=8), image),
    "transposed": (lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1), image),
    "normalized": (lambda: nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)), image),
    "sound": (lambda: nn.Conv1d(8, 4, 3), sound),
    "volume": (lambda: nn.Conv3d(8, 4, 3), volume),
}
wrong = []
for name, (make, values) in CASES.items():
    for last in [False, True][: values.dim() - 2 if values.dim() == 4 else 1]:
        here = run(make, values, last, "cpu")
        there = run(make, values, last, "cuda")
        wrong += [
            f"{name} {part} {last}"
            for part in here
            if not torch.allclose(here[part], there[part].cpu(), atol=1e-4)
        ]
recurrent = []
for make in (nn.RNN, nn.LSTM, nn.GRU):
    for options in ({}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}):
        module = make(8, 16, **options)
        values = torch.randn(5, 3, 8)
        here = module(values)[0]
        there = module.cuda()(values.cuda())[0]
        if not torch.allclose(here, there.cpu(), atol=1e-5):
            recurrent.append(f"{make.__name__} {options}")
warned = len(sim.uncomputed_reads())
torch.backends.cudnn.benchmark = True
chosen = nn.Conv2d(8, 4, 5).cuda()(image.cuda()).shape
lstm = nn.LSTM(8, 16).cuda()
lstm(torch.randn(5, 3, 8, device="cuda"))[0].sum().backward()
lstm.weight_ih_l0.grad.cpu()
print(
    json.dumps(
        {
            "version": torch.backends.cudnn.version(),
            "cases": len(CASES),
            "wrong": wrong,
            "recurrent": recurrent,
            "warned": warned,
            "chosen": list(chosen),
            "gradients": len(sim.uncomputed_reads()) - warned,
            "failures": [failure.operator for failure in sim.library_failures()],
        }
    )
)
