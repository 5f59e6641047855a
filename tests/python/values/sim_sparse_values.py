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


def compressed(device):
    return matrix(device).coalesce().to_sparse_csr()


def two_hops(device):
    """The product of a graph's normalized adjacency with itself, and a gradient."""
    graph = matrix(device).coalesce()
    nodes = torch.arange(40, device=device).expand(2, 40)
    degrees = torch.sparse.sum(graph, 1).to_dense().abs().add(1).rsqrt()
    scale = torch.sparse_coo_tensor(nodes, degrees, graph.shape).coalesce().requires_grad_()
    normalized = torch.sparse.mm(torch.sparse.mm(scale, graph), scale)
    torch.sparse.sum(torch.sparse.mm(normalized, normalized)).backward()
    return torch.cat([parts(normalized.detach()), parts(scale.grad)])


def flipped(device):
    """To compressed columns and back."""
    columns = compressed(device).to_sparse_csc()
    places = [columns.ccol_indices(), columns.row_indices(), columns.to_sparse_csr().col_indices()]
    return torch.cat([*(each.double() for each in places), columns.values()])


def many_flipped(device):
    """Conversions cost little, so those of many elements are computed too."""
    rows = torch.arange(300_000, device=device)
    graph = torch.sparse_coo_tensor(torch.stack([rows, rows * 7 % 300_000]), rows.double())
    columns = graph.coalesce().to_sparse_csr().to_sparse_csc()
    return torch.cat([columns.ccol_indices(), columns.row_indices()])


def added_rows(device):
    """Of other indices than each other, and of the same ones."""
    one, other = compressed(device), (matrix(device) * 2).t().coalesce().to_sparse_csr()
    return torch.cat([torch.add(one, each, alpha=3).to_dense() for each in (other, one)])


def added_rows_in_place(device):
    """To the matrix itself, and to one with the same places."""
    one = compressed(device)
    other = torch.sparse_csr_tensor(one.crow_indices(), one.col_indices(), one.values() + 1)
    other += one
    one.add_(other, alpha=3)
    torch.add(other, one, out=one)
    one += one
    return torch.cat([one.to_dense(), other.to_dense()])


def solved(device):
    graph = matrix(device).to_dense() + 500 * torch.eye(40, dtype=torch.double, device=device)
    triangle = torch.tril(graph) if device == "cpu" else graph.to_sparse_csr()
    sides = torch.arange(80.0, dtype=torch.double, device=device).view(40, 2)
    found = [torch.triangular_solve(sides, triangle, False, each)[0] for each in (False, True)]
    return torch.cat(found)


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
    "product": lambda d: parts(torch.sparse.mm(matrix(d), matrix(d))),
    "product_of_rows": lambda d: (compressed(d) @ compressed(d)).to_dense(),
    "product_of_columns": lambda d: (
        compressed(d).to_sparse_csc() @ compressed(d).to_sparse_csc()
    ).to_dense(),
    "sum_of_rows": added_rows,
    "sum_in_place": added_rows_in_place,
    "two_hops": two_hops,
    "flipped": flipped,
    "many_flipped": many_flipped,
    "solved": solved,
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
