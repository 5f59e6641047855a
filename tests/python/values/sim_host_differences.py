"""Operators whose CPU kernels refuse arguments that a card takes, or would end the process.

Prints the cases with other values than a card's, and those that are not known.
"""

import json

import torch

from ferro_alloc import sim

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
wrong, unknown = [], []


def reads():
    return sum(read.count for read in sim.uncomputed_reads())


def check(name, function, arguments, expected, **tolerance):
    before = reads()
    found = function(*(x.cuda() if isinstance(x, torch.Tensor) else x for x in arguments))
    if not torch.allclose(found.cpu(), expected, **tolerance):
        wrong.append(name)
    if reads() != before:
        unknown.append(name)


# Softmax of one type as another, and its gradients.
for kind in (torch.float16, torch.bfloat16):
    for method in ("softmax", "log_softmax"):
        results = []
        for device in ("cpu", "cuda"):
            x = torch.tensor([[1, 2, 3], [0.5, 0.25, 8]], dtype=kind, device=device)
            y = getattr(x.requires_grad_(), method)(-1, dtype=torch.float32)
            (gradient,) = torch.autograd.grad(y.square().sum(), x)
            results.append((y.detach(), gradient))
        expected, found = results
        check(f"{method} of {kind}", torch.clone, found[:1], expected[0])
        check(f"gradient of {method}", torch.clone, found[1:], expected[1], atol=1e-3)


# The quotient of the lowest number and -1 is that number on an H200, and the rest is 0.
def divided(mode):
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


def in_place(method, **options):
    return lambda x, y: getattr(x.clone(), method)(y, **options)


def into(function, **options):
    return lambda x, y: function(x, y, out=torch.empty_like(x), **options)


QUOTIENTS = {
    "trunc": divided("trunc"),
    "floor": divided("floor"),
    "floor_divide": torch.floor_divide,
    "trunc in place": in_place("div_", rounding_mode="trunc"),
    "floor_divide in place": in_place("floor_divide_"),
    "trunc, out": into(torch.div, rounding_mode="trunc"),
    "floor_divide, out": into(torch.floor_divide),
}
RESTS = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "remainder in place": in_place("remainder_"),
    "fmod in place": in_place("fmod_"),
    "remainder, out": into(torch.remainder),
    "fmod, out": into(torch.fmod),
}
for kind in INTEGERS[1:]:
    low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
    numbers = torch.tensor([low, high, 5, -5, 0], dtype=kind)
    expected = torch.tensor([low, -high, -5, 5, 0], dtype=kind)
    for name, function in QUOTIENTS.items():
        for divisor in (-1, torch.tensor(-1), torch.full((5,), -1, dtype=kind)):
            check(f"{name} of {kind}", function, (numbers, divisor), expected)
    for name, function in RESTS.items():
        divisors = torch.tensor([-1, -1, -1, -1, 3], dtype=kind)
        check(f"{name} of {kind}", function, (numbers, divisors), torch.zeros_like(numbers))
    others = torch.tensor([5, 1, 0, 7, 3], dtype=kind)
    expected = torch.tensor([low, high, 0, 35, 0], dtype=kind)
    for name, function in {"lcm": torch.lcm, "lcm in place": in_place("lcm_")}.items():
        check(f"{name} of {kind}", function, (numbers, others), expected)
        check(f"{name} of {kind}", function, (others, numbers), expected)

# Divided by zero, the result is unknown.
before = reads()
(torch.tensor([5, 6]).cuda() // torch.tensor([0, 3]).cuda()).cpu()
divided_by_zero = reads() - before


# No operator on two tensors ends the process. Polynomials of such orders take too long.
def pairs():
    for name in (name for name in dir(torch.ops.aten) if "polynomial" not in name):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            arguments = operator._schema.arguments
            tensors = [a for a in arguments if str(a.type) == "Tensor" and not a.kwarg_only]
            needed = [a for a in arguments if not a.has_default_value() and a not in tensors]
            modes = ("trunc", "floor") if [a.name for a in needed] == ["rounding_mode"] else (None,)
            if (
                len(tensors) == 2
                and (not needed or modes[0])
                and torch.Tag.pointwise in operator.tags
            ):
                for mode in modes:
                    yield operator, {} if mode is None else {"rounding_mode": mode}


tried = 0
for operator, options in pairs():
    for kind in INTEGERS:
        ends = torch.iinfo(kind)
        edges = torch.tensor([ends.min, -1 if ends.min else 1, 1, 5, ends.max], dtype=kind)
        one, other = edges.repeat(5).cuda(), edges.repeat_interleave(5).cuda()
        try:
            operator(one, other, **options).cpu()
            tried += 1
        except (RuntimeError, NotImplementedError, IndexError):
            pass
print(
    json.dumps(
        {"wrong": wrong, "unknown": unknown, "by_zero": divided_by_zero, "tried": tried > 100}
    )
)
