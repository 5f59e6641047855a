"""What is known about tensors that were copied to the host, and then back to a card.

Prints for each case whether its elements are unknown, as a string of 0 and 1.
"""

import itertools
import json

import torch

from ferro_alloc import sim


def reads():
    return sum(read.count for read in sim.uncomputed_reads())


def unknown(tensor):
    found = ""
    for element in tensor.flatten():
        before = reads()
        element.cpu()
        found += str(int(reads() != before))
    return found


def partly():
    """010010 by columns: the first two elements of the second row are unknown."""
    x = torch.empty(2, 3, device="cuda")
    x[0] = 5
    x[1, 2] = 7
    return x


def on_host(shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def filled_by(view, shape, dtype=torch.float32):
    host = on_host(shape, dtype)
    view(host).copy_(partly())
    return host.cuda()


def into_columns(host):
    device = torch.zeros(3, 2, device="cuda")
    device.t().copy_(host)
    return device


def written(write):
    host = partly().cpu()
    write(host)
    return host.cuda()


# Unset memory holds what was there before, such as the numbers of the last case.
others = itertools.count(100)


def by_numpy(host):
    host.numpy()[:] = next(others)


def resized(host):
    host.untyped_storage().resize_(0)
    host.untyped_storage().resize_(24)
    by_numpy(host)


PARTLY = {
    "there": partly,
    "and back": lambda: partly().cpu().cuda(),
    "transposed": lambda: partly().t().cpu().t().cuda(),
    "other rows": lambda: partly().flip(0).cpu().cuda().flip(0),
    "to another type": lambda: partly().cpu().to("cuda", torch.float64),
    "from another type": lambda: filled_by(lambda host: host, (2, 3), torch.float64),
    "to columns of the host": lambda: filled_by(lambda host: host.t(), (3, 2)).t(),
    "with gaps": lambda: filled_by(lambda host: host[:, 1:4], (2, 5))[:, 1:4],
    "by columns": lambda: into_columns(partly().cpu()).t(),
    "row by row": lambda: torch.stack([row.cuda() for row in partly().cpu()]),
    "not blocking": lambda: partly().cpu().to("cuda", non_blocking=True),
    "not written": lambda: written(lambda host: host.sum()),
}
WRITTEN = {
    "filled": lambda: written(lambda host: host.fill_(3)),
    "added": lambda: written(lambda host: host.add_(1)),
    "a row": lambda: written(lambda host: host[1].fill_(3)),
    "by numpy": lambda: written(by_numpy),
    "resized": lambda: written(resized),
}


def big():
    """A part of a large tensor that the program wrote."""
    host = torch.empty(40 << 20, dtype=torch.uint8, device="cuda").cpu()
    host[30 << 20 :] = 1
    return torch.stack([host[place << 20 :][:2].cuda() for place in (0, 35)])


def cases():
    found = {name: unknown(case()) for name, case in (PARTLY | WRITTEN).items()}
    return found | {
        "gaps": unknown(filled_by(lambda host: host[:, 1:4], (2, 5))[:, ::4]),
        "big": unknown(big()),
    }


found = {}
for mode in (torch.enable_grad, torch.inference_mode):
    with mode():
        found[mode.__name__] = cases()
print(json.dumps(found))
