"""Children of fork() that use a card's tensor of their parent.

Prints the error of each use, with the status of its process.
"""

import json
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset

if "ferro" in sys.argv[1:]:
    import ferro_alloc

    ferro_alloc.install()

x = torch.ones(4, device="cuda")


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return x[index] + 1


def first_batch():
    loader = DataLoader(Rows(), num_workers=1, multiprocessing_context="fork")
    return next(iter(loader))


def forgotten():
    global x
    del x


USES = {
    "add": lambda: x + 1,
    "read": lambda: x.cpu(),
    "item": lambda: x[0].item(),
    "write": lambda: x.copy_(torch.ones(4)),
    "like": lambda: torch.empty_like(x),
    "product": lambda: x @ x,
    "new": lambda: torch.ones(1, device="cuda"),
    "pin": lambda: torch.ones(1).pin_memory(),
    "synchronize": torch.cuda.synchronize,
    "shape": lambda: x.shape,
    "forgotten": forgotten,
}


def error_of(use):
    try:
        use()
    except RuntimeError as error:
        # A loader's worker sends the text of its error.
        return next(
            (
                word
                for word in ("initialization error", "Cannot re-initialize")
                if word in str(error)
            ),
            str(error),
        )
    return None


def in_child(use):
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps(error_of(use)).encode())
        os._exit(7)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [json.loads(text) if text else None, status]


found = {name: in_child(use) for name, use in USES.items()}
found["loader"] = [error_of(first_batch), 7]
found["parent"] = (x + 1).tolist()
print(json.dumps(found))
