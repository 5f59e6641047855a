"""The operators whose wrapped kernels have no boxed arguments, on known data and on the host.

Prints those with other values than the host's, those that are not known, and those that have boxed
kernels all the same.
"""

import json
import re
from pathlib import Path

import torch

from ferro_alloc import sim

SOURCE = Path(__file__).resolve().parents[3] / "csrc" / "values" / "direct_kernels.cpp"

numbers = torch.tensor([[0.5, 2.0, 0.25], [1.0, 0.75, 3.0], [0.125, 4.0, 1.5]])
others = torch.tensor([[2.0, 2.0, 0.5], [3.0, 0.75, 1.0], [0.25, 8.0, 1.5]])
integers = torch.tensor([[5, 3, 6], [1, 2, 7], [4, 0, 2]])
# What operators get that refuse these numbers, or need others.
ARGUMENTS = {
    "aten::bitwise_and.Tensor": (integers, integers.t()),
    "aten::bitwise_or.Tensor": (integers, integers.t()),
    "aten::bitwise_not": (integers,),
    "aten::where.self": (integers > 2, numbers, others),
    "aten::index_select": (numbers, 1, torch.tensor([2, 0])),
    "aten::gather": (numbers, 1, integers % 3),
    "aten::bmm": (numbers.view(1, 3, 3), others.view(1, 3, 3)),
    "aten::cat": ([numbers, others], 1),
    "aten::_softmax_backward_data": (numbers, others.softmax(-1), -1, torch.float32),
    "aten::copy_": (torch.zeros(3, 3, dtype=torch.float64), numbers),
}
BY_TYPE = {
    "number": 2,
    "int": 1,
    "bool": False,
    "Optional[List[int]]": [1],
    "Optional[int]": None,
}


def operator(name):
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def arguments_of(name):
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    tensors = iter((numbers, others, numbers))
    return tuple(
        next(tensors) if str(argument.type) == "Tensor" else BY_TYPE[str(argument.type)]
        for argument in operator(name)._schema.arguments
        if not argument.has_default_value() or argument.name == "dim"
    )


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.clone().to(device)
    return [moved(each, device) for each in value] if isinstance(value, list) else value


def result(name, device):
    return operator(name)(*(moved(value, device) for value in arguments_of(name))).cpu()


names = re.findall(r'\{"(aten::[\w.]+)",', SOURCE.read_text())
wrong, unknown, boxed = [], [], []
for name in names:
    reads = sum(read.count for read in sim.uncomputed_reads())
    if not torch.allclose(result(name, "cuda"), result(name, "cpu")):
        wrong.append(name)
    if sum(read.count for read in sim.uncomputed_reads()) != reads:
        unknown.append(name)
    (kernel,) = (
        line
        for line in torch._C._dispatch_dump(name).splitlines()
        if line.startswith("CUDA: values of the simulated GPU")
    )
    if "unboxed" not in kernel:
        boxed.append(name)
print(json.dumps({"names": len(names), "wrong": wrong, "unknown": unknown, "boxed": boxed}))
