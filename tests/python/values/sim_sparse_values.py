"""Operators on sparse tensors of the simulated GPU, compared with the host.

Memory that the operators take holds known bytes of freed tensors. Prints the names of operators
with other values, and the places that read uncomputed values.
"""

import json
import sys

import torch

from ferro_alloc import sim

ELEMENTS = int(sys.argv[1])
generator = torch.Generator().manual_seed(0)
ids = torch.randint(ELEMENTS, (ELEMENTS,), generator=generator)
pairs = torch.randint(40, (2, ELEMENTS), generator=generator)
numbers = torch.randint(-9, 9, (ELEMENTS,), generator=generator).double()
rows = numbers[:, None] * torch.arange(3.0, dtype=torch.double)
table = torch.randint(-9, 9, (ELEMENTS, 3), generator=generator).double()


def fill_free_memory():
    """Leaves known bytes in the memory that the next operators use."""
    if torch.cuda.is_initialized():
        sizes = (1, 64, 4096, ELEMENTS, 3 * ELEMENTS, 1 << 20)
        junk = [torch.full((size,), 7, device="cuda") for size in sizes]
        del junk


def vector(device):
    return torch.sparse_coo_tensor(ids.to(device)[None], numbers.to(device), (ELEMENTS,))


def matrix(device):
    return torch.sparse_coo_tensor(pairs.to(device), numbers.to(device), (40, 40))


def hybrid(device):
    return torch.sparse_coo_tensor(ids.to(device)[None], rows.to(device), (ELEMENTS, 3))


def parts(sparse):
    sparse = sparse.coalesce()
    return torch.cat([sparse.indices().double().flatten(), sparse.values().flatten()])


def embedded(device):
    layer = torch.nn.Embedding(ELEMENTS, 3, sparse=True, _weight=table.to(device))
    (layer(ids.to(device)) * rows.to(device)).sum().backward()
    return parts(layer.weight.grad)


def bagged(device):
    layer = torch.nn.EmbeddingBag(ELEMENTS, 3, sparse=True, mode="sum", _weight=table.to(device))
    bags = torch.arange(0, ELEMENTS, 5, device=device)
    (layer(ids.to(device), bags) * rows.to(device)[::5]).sum().backward()
    return parts(layer.weight.grad)


def adam(device):
    layer = torch.nn.Embedding(ELEMENTS, 3, sparse=True, _weight=table.to(device))
    optimizer = torch.optim.SparseAdam(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (layer(ids.to(device)) * rows.to(device)).sum().backward()
        optimizer.step()
    return layer.weight.detach()


def counts(device):
    """Sizes that only follow from indices, whatever the values are."""
    large = torch.randn(1000, 1000, dtype=torch.double, device=device)
    unknown = (large @ large).sum()
    sparse = torch.sparse_coo_tensor(
        pairs.to(device), numbers.to(device) * unknown, (40, 40), dtype=torch.double
    ).coalesce()
    return torch.cat([torch.tensor([sparse._nnz()]), sparse.indices().cpu().flatten()])


def added_in_place(device):
    dense = table.to(device, copy=True)
    return dense.add_(hybrid(device), alpha=2).sub_(hybrid(device).coalesce())


CASES = {
    "coalesce": lambda d: parts(vector(d)),
    "coalesce_matrix": lambda d: parts(matrix(d)),
    "coalesce_hybrid": lambda d: parts(hybrid(d)),
    "coalesce_one": lambda d: parts(
        torch.sparse_coo_tensor(ids[:1].to(d)[None], numbers[:1].to(d), (ELEMENTS,)).coalesce()
    ),
    "coalesce_half": lambda d: parts(matrix(d).to(torch.bfloat16)),
    "to_dense": lambda d: vector(d).to_dense(),
    "to_dense_hybrid": lambda d: hybrid(d).to_dense(),
    "add_to_dense": lambda d: table.to(d) + hybrid(d),
    "add_in_place": added_in_place,
    "add": lambda d: parts(matrix(d) + matrix(d).coalesce()),
    "sum": lambda d: parts(torch.sparse.sum(matrix(d), 1)),
    "sum_all": lambda d: torch.sparse.sum(matrix(d)),
    "softmax": lambda d: parts(torch.sparse.softmax(matrix(d), 1)),
    "softmax_rows": lambda d: parts(torch.sparse.softmax(matrix(d), 0)),
    "softmax_dense": lambda d: parts(torch.sparse.softmax(hybrid(d), 1)),
    "log_softmax": lambda d: parts(torch.sparse.log_softmax(vector(d), 0)),
    "mask": lambda d: parts(table.to(d).sparse_mask(hybrid(d).coalesce())),
    "transpose": lambda d: parts(matrix(d).t()),
    "select": lambda d: matrix(d).coalesce().to_dense()[3],
    "index_select": lambda d: parts(matrix(d).coalesce().index_select(0, ids[:9].to(d) % 40)),
    "index_select_columns": lambda d: parts(matrix(d).index_select(1, ids[:9].to(d) % 40)),
    "index_select_dense": lambda d: parts(hybrid(d).index_select(1, ids[:2].to(d) % 3)),
    "csr": lambda d: matrix(d).to_sparse_csr().crow_indices(),
    "from_dense": lambda d: parts(table.to(d).to_sparse()),
    "scale": lambda d: parts(matrix(d) * 3),
    "embedding": embedded,
    "embedding_bag": bagged,
    "adam": adam,
    "counts": counts,
}
chosen = sys.argv[2:] or CASES
wrong = []
for name in chosen:
    fill_free_memory()
    found, expected = CASES[name]("cuda").cpu().double(), CASES[name]("cpu").double()
    if found.shape != expected.shape or not torch.allclose(found, expected):
        wrong.append(name)
print(
    json.dumps(
        {
            "cases": len(CASES),
            "wrong": wrong,
            "reads": [(read.place, read.operator, read.learned) for read in sim.uncomputed_reads()],
        }
    )
)
