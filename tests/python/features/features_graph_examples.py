"""The ways to use CUDA graphs that PyTorch documents, one check for each.

It runs as it is on the simulated GPU and on a real one. Bytes that were only copied are compared
here. Results of kernels are part of a check's result as a digest, which is the same under every
allocator. On the simulated GPU kernels compute nothing, and the digest is left out.
"""

import ctypes
import hashlib
import itertools

from tests.python.feature_checks import MIB, check, error_of, filled, finish, statistic, take, words

import torch
from torch import nn

from ferro_alloc import sim

REAL = not sim.is_active()
WIDTH, ROWS = 64, 32
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
cudart = ctypes.CDLL("libcudart.so.13")


def digest(*tensors):
    """The digest of results of kernels; None on the simulated GPU."""
    if not REAL:
        return None
    data = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    return hashlib.sha256(torch.cat(data).numpy().tobytes()).hexdigest()


def nodes(graph):
    """The number of copies, memsets and kernels in a graph made with `keep_graph=True`."""
    count = ctypes.c_size_t()
    source = ctypes.c_void_p(graph.raw_cuda_graph())
    assert cudart.cudaGraphGetNodes(source, None, ctypes.byref(count)) == 0
    return count.value


def launches():
    """The number of launches of graphs so far; only the simulated GPU counts them."""
    return 0 if REAL else sim.counters()["cuGraphLaunch"].calls


def requested():
    """Requested bytes of live tensors, once no free waits for a stream."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return statistic("requested_bytes")


def pool_of(tensor):
    """The pool that the memory of a tensor belongs to."""
    (found,) = (
        tuple(segment["segment_pool_id"])
        for segment in torch.cuda.memory_snapshot()
        if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]
    )
    return found


def has(tensor, tag):
    return torch.equal(tensor.cpu(), words(tag, tensor.nbytes))


def batch(seed):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


def network(activation=nn.GELU, seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), activation(), nn.Linear(2 * WIDTH, WIDTH)
    ).cuda()


def warm_up(work, count=3):
    """Runs on a side stream, so that the capture finds all objects that are created only once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(count):
            work()
    torch.cuda.current_stream().wait_stream(side)


def captured(work, pool=None):
    """The graph, the result of the work, and the growth of requested bytes."""
    graph, before = torch.cuda.CUDAGraph(keep_graph=True), requested()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result, requested() - before


def train(static, graph, steps, after_replay=lambda: None):
    """Replays on new batches, which must arrive completely."""
    for seed in range(steps):
        for number, tensor in enumerate(static):
            tensor.copy_(batch(10 * seed + number))
        graph.replay()
        after_replay()
        for number, tensor in enumerate(static):
            assert torch.equal(tensor.detach().cpu(), batch(10 * seed + number))


# ---- capture and replay


@check
def a_capture_with_its_two_calls():
    source, side = filled(MIB, 1), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        source.clone().mul_(3)
        graph.capture_begin()
        copy = source.clone()
        product = copy * 3
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    graph.instantiate()
    for tag in (5, 6, 7):
        source.copy_(words(tag, MIB))
        graph.replay()
        assert has(copy, tag)
        assert not REAL or torch.equal(product.cpu(), 3 * words(tag, MIB))
    return nodes(graph), graph.raw_cuda_graph_exec() != 0, digest(product)


@check
def inputs_at_a_fixed_place():
    static = filled(MIB, 1)

    def work():
        copy = static.clone()
        return copy, copy.float().sqrt()

    warm_up(work)
    graph, (copy, root), held = captured(work)
    places = static.data_ptr(), copy.data_ptr(), root.data_ptr()
    made, drawn = statistic("allocation", "allocated"), []
    for tag in (2, 3, 4):
        static.copy_(words(tag, MIB))
        graph.replay()
        assert has(copy, tag)
        drawn.append(digest(root))
    # A replay takes no memory, and its results are where they were.
    assert statistic("allocation", "allocated") == made
    assert places == (static.data_ptr(), copy.data_ptr(), root.data_ptr())
    return nodes(graph), held, drawn


@check
def a_graph_for_each_shape():
    """As in servers that pad a request to the next size that has a graph."""
    shapes, pool = (4 * MIB, 2 * MIB, MIB), torch.cuda.graph_pool_handle()
    source = filled(max(shapes), 0)
    graphs, grown = {}, []
    for shape in shapes:

        def work(part=source[: shape // 4]):
            return part.clone().clone()

        warm_up(work)
        graph, result, held = captured(work, pool)
        graphs[shape] = graph, result
        grown.append(held)
    for tag, wanted in enumerate((MIB, 3 * MIB, 4096, 4 * MIB, 2 * MIB, 5), 20):
        shape = min(shape for shape in shapes if shape >= wanted)
        graph, result = graphs[shape]
        source[: wanted // 4].copy_(words(tag, wanted))
        graph.replay()
        assert has(result[: wanted // 4], tag)
    return grown, [nodes(graph) for graph, _ in graphs.values()]


# ---- networks


@check
def a_whole_training_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, target = batch(0).cuda(), batch(1).cuda()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    warm_up(step)
    optimizer.zero_grad(set_to_none=True)
    graph, loss, held = captured(step)
    # The backward pass created the gradients, so they belong to the graph.
    assert all(pool_of(p.grad) == tuple(graph.pool()) for p in model.parameters())
    train((inputs, target), graph, 4)
    return nodes(graph), held, digest(loss, *model.parameters())


@check
def parts_of_a_network_with_branches_between():
    torch.manual_seed(4)
    trunk, left = nn.Linear(WIDTH, WIDTH).cuda(), network(nn.ReLU)
    right = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).cuda()
    modules = (trunk, left, right)
    optimizer = torch.optim.SGD(itertools.chain(*(m.parameters() for m in modules)), lr=0.1)
    x, hidden = batch(0).cuda(), batch(1).cuda().requires_grad_()
    before = requested()
    trunk = torch.cuda.make_graphed_callables(trunk, (x,))
    left = torch.cuda.make_graphed_callables(left, (hidden,))
    right = torch.cuda.make_graphed_callables(right, (hidden,))
    held, started, trained = requested() - before, launches(), []
    for number, choice in enumerate((0, 1, 1, 0, 1)):
        optimizer.zero_grad(set_to_none=True)
        x, target = batch(number).cuda(), batch(number + 20).cuda()
        choice = torch.tensor([choice]).cuda()
        hidden = trunk(x)
        # The host reads a value of the device to choose the next graph.
        out = (left, right)[choice.item()](hidden)
        nn.functional.mse_loss(out, target).backward()
        optimizer.step()
        trained.append([next(m.parameters()).grad is not None for m in modules])
    return held, launches() - started, trained, digest(*trunk.parameters(), *left.parameters())


@check
def a_gradient_penalty():
    """A backward pass through a backward pass, in a capture."""
    model = network(nn.Tanh)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    inputs, target = batch(0).cuda(), batch(1).cuda()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs), target)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        (loss + penalty).backward()
        optimizer.step()
        return loss.detach(), penalty.detach()

    warm_up(step)
    graph, results, held = captured(step)
    train((inputs, target), graph, 4)
    return nodes(graph), held, digest(*results, *weights)


@check
def gradients_add_up_over_replays():
    """Two backward passes over one forward pass, into gradients that existed before."""
    model = network()
    inputs = batch(0).cuda()

    def step():
        hidden = model[0](inputs)
        hidden.retain_grad()
        loss = model[2](model[1](hidden)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return hidden

    warm_up(step)
    weights = list(model.parameters())
    places = [weight.grad.data_ptr() for weight in weights]
    graph, hidden, held = captured(step)
    assert places == [weight.grad.data_ptr() for weight in weights]
    assert all(pool_of(weight.grad) == (0, 0) for weight in weights)
    assert pool_of(hidden.grad) == pool_of(hidden) == tuple(graph.pool())
    for weight in weights:
        weight.grad.zero_()
    train((inputs,), graph, 3)
    return nodes(graph), held, digest(hidden.grad, *(weight.grad for weight in weights))


# ---- mixed precision


@check
def mixed_precision_with_the_scaler_partly_outside():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    inputs, target = batch(0).cuda(), batch(1).cuda()

    def forward_and_backward():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = nn.functional.mse_loss(model(inputs), target)
        scaler.scale(loss).backward()
        return loss.detach()

    def rest():
        # The scaler checks on the host whether a gradient overflowed, which a graph cannot do.
        scaler.step(optimizer)
        scaler.update()

    def whole():
        forward_and_backward()
        rest()

    warm_up(whole)
    optimizer.zero_grad(set_to_none=True)
    graph, loss, held = captured(forward_and_backward)
    train((inputs, target), graph, 5, rest)
    scale = scaler.get_scale() if REAL else None
    assert not REAL or scale > 1024.0
    return nodes(graph), held, loss.dtype.itemsize, scale, digest(loss, *model.parameters())


@check
def graphed_callables_in_mixed_precision():
    model, sample = network(), batch(0).cuda()
    caching = torch.autocast("cuda", dtype=torch.bfloat16)
    kind = ""
    with caching:
        kind, _ = error_of(lambda: torch.cuda.make_graphed_callables(model, (sample,)))
    autocast = torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)
    before = requested()
    with autocast:
        graphed = torch.cuda.make_graphed_callables(model, (sample,))
    held, started = requested() - before, launches()
    for seed in range(3):
        with autocast:
            out = graphed(batch(seed).cuda())
        out.float().square().mean().backward()
    gradients = [weight.grad for weight in model.parameters()]
    return kind, str(out.dtype), held, launches() - started, digest(out, *gradients)


# ---- streams


@check
def streams_that_fork_and_join():
    source, first, second = filled(MIB, 1), torch.cuda.Stream(), torch.cuda.Stream()

    def work():
        main = torch.cuda.current_stream()
        root = source.clone()
        first.wait_stream(main)
        second.wait_stream(main)
        both = take(2 * MIB)
        with torch.cuda.stream(second):
            right = root.clone()
            both[MIB:].copy_(right.view(torch.uint8))
            product = right * 5
        with torch.cuda.stream(first):
            left = root.clone()
            both[:MIB].copy_(left.view(torch.uint8))
            first.wait_stream(second)
            copy = both.clone()
            both.record_stream(first)
        both.record_stream(second)
        root.record_stream(first)
        root.record_stream(second)
        del root, left, right
        main.wait_stream(first)  # and so for the second one
        return both, copy, product

    warm_up(work)
    graph, results, _ = captured(work)
    for tag in (3, 4):
        source.copy_(words(tag, MIB))
        graph.replay()
        for result in results[:2]:
            for half in result.view(torch.int32).chunk(2):
                assert has(half, tag)
    return nodes(graph), digest(*results)


@check
def replays_between_work_of_other_streams():
    source, side = filled(MIB, 1), torch.cuda.Stream()
    graph, result, _ = captured(lambda: source.clone())
    kept = []
    for tag in range(6):
        host = words(tag, MIB).pin_memory()
        with torch.cuda.stream(side):
            source.copy_(host, non_blocking=True)
            made = source.clone()
        torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        kept.append((tag, result.clone(), made, host))
        made.record_stream(torch.cuda.current_stream())
        side.wait_stream(torch.cuda.current_stream())
    return [has(copy, tag) and has(made, tag) for tag, copy, made, _ in kept]


# ---- memory


def two_graphs(source, pools):
    """Each graph has two temporaries of 8 MiB and a result; the second pool may be a function."""
    results = []
    before = torch.cuda.memory_reserved()
    for pool in pools:
        pool = pool(results[0][0]) if callable(pool) else pool
        results.append(captured(lambda: source.clone().clone()[: MIB // 4].clone(), pool)[:2])
    taken = torch.cuda.memory_reserved() - before
    for tag in (6, 7):
        source.copy_(words(tag, 8 * MIB))
        for graph, result in results:
            graph.replay()
            assert has(result, tag)
    ids = [tuple(graph.pool()) for graph, _ in results]
    return ids, taken


@check
def graphs_that_share_a_pool():
    source, handle = filled(8 * MIB, 1), torch.cuda.graph_pool_handle()
    (first, second), separate = two_graphs(source, (None, None))
    assert first != second
    taken = []
    for pools in ((None, lambda graph: graph.pool()), (handle, handle)):
        (first, second), shared = two_graphs(source, pools)
        assert first == second
        taken.append(separate - shared >= 14 * MIB)
    return taken, first == tuple(handle)


@check
def a_graph_in_a_mem_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        source = filled(MIB, 1)
    outside = filled(MIB, 2)
    counts = [pool.use_count()]
    graph, result, held = captured(source.clone, pool.id)
    counts.append(pool.use_count())
    with torch.cuda.use_mem_pool(pool):
        later = filled(MIB, 3)
    inside = [pool_of(t) == tuple(pool.id) for t in (source, outside, result, later)]
    for tag in (8, 9):
        source.copy_(words(tag, MIB))
        graph.replay()
        assert has(result, tag)
    del graph
    counts.append(pool.use_count())
    assert has(result, 9)
    assert has(later, 3)
    return counts, inside, held


@check
def graphed_callables_and_a_graph_in_one_pool():
    handle = torch.cuda.graph_pool_handle()
    torch.manual_seed(6)
    first, second = nn.Linear(WIDTH, WIDTH).cuda(), network()
    x, hidden = batch(0).cuda(), batch(1).cuda().requires_grad_()
    before = requested()
    graphed = torch.cuda.make_graphed_callables((first, second), ((x,), (hidden,)), pool=handle)
    held = requested() - before
    source = filled(MIB, 1)
    graph, result, _ = captured(source.clone, handle)
    started = launches()
    for seed in range(3):
        source.copy_(words(seed, MIB))
        out = graphed[1](graphed[0](batch(seed).cuda()))
        out.square().mean().backward()
        graph.replay()
        assert has(result, seed)
    same = [pool_of(t) == tuple(handle) for t in (out, result)]
    gradients = [weight.grad for weight in (*first.parameters(), *second.parameters())]
    return held, same, launches() - started, digest(out, *gradients)


# ---- random numbers


@check
def random_numbers_go_on_from_replay_to_replay():
    generator = torch.Generator("cuda").manual_seed(7)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.register_generator_state(generator)
    x = torch.ones(1 << 12, device="cuda")
    with torch.cuda.graph(graph):
        own = torch.rand(1 << 12, device="cuda", generator=generator)
        dropped = nn.functional.dropout(x, 0.5)
    torch.manual_seed(8)
    start, states, drawn = generator.get_state(), [], []
    for _ in range(3):
        graph.replay()
        states.append(generator.get_state().tolist())
        drawn += [digest(own), digest(dropped)]
    assert len({str(state) for state in states}) == 3
    assert not REAL or len(set(drawn)) == 6
    # From the same state on, eager work and a replay draw the same numbers.
    generator.set_state(start)
    graph.replay()
    assert generator.get_state().tolist() == states[0]
    assert digest(own) == drawn[0]
    generator.set_state(start)
    assert digest(torch.rand(1 << 12, device="cuda", generator=generator)) == drawn[0]
    return nodes(graph), states, torch.cuda.get_rng_state().tolist(), drawn


@check
def a_generator_whose_state_changes_hands():
    """Two graphs with a state each, which one generator uses in turns."""
    generator, graphs = torch.Generator("cuda").manual_seed(9), []
    states = [generator.graphsafe_get_state(), generator.clone_state()]
    for state in states:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(state)
        generator.graphsafe_set_state(state)
        with torch.cuda.graph(graph):
            noise = torch.rand(1 << 12, device="cuda", generator=generator)
        graphs.append((graph, noise))
    drawn = []
    for number in (0, 0, 1, 0, 1):
        graphs[number][0].replay()
        drawn.append(digest(graphs[number][1]))
    # Copies of one state: each draws the same numbers independently.
    assert not REAL or (drawn[0], drawn[1]) == (drawn[2], drawn[4])
    return [state.get_state().tolist() for state in states], drawn


finish()
