"""cuDNN on the simulated GPU: values of small layers, and workspaces compared with a GPU's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunProgram, RunSimulated

pytestmark = pytest.mark.no_extension

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
STORED = BENCHMARKS / "results" / "workspaces_gpu.json"
MODES = pytest.mark.parametrize("activate", [{}, {"mode": "adversarial", "values": True}], ids=str)

# A 3 x 3 window over 16 MiB in rows; the copies of images, results and weights take 32 MiB more,
# beside the results.
SHORT = """\
import json
import torch
from ferro_alloc import sim
kept = torch.empty(MIB << 20, dtype=torch.uint8, device="cuda")
image = torch.zeros(1, 64, 256, 256, device="cuda")
weight = torch.zeros(64, 64, 3, 3, device="cuda")
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
torch.nn.functional.conv2d(image, weight, padding=1)
print(json.dumps(torch.cuda.max_memory_allocated() - before))
"""

# What attention with and without dropout requests, and how far it moves the generator.
DROPOUT_IN_ATTENTION = """\
import json
import torch
torch.cuda.init()
generator = torch.cuda.default_generators[0]
query = torch.ones(4, 8, 100, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
key = torch.ones(4, 8, 30, 64, device="cuda", dtype=torch.bfloat16)
found = []
for dropout in (0.0, 0.1):
    before = generator.get_offset()
    torch.cuda.memory._record_memory_history(context=None)
    torch.nn.functional.scaled_dot_product_attention(query, key, key, dropout_p=dropout)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    sizes = [event["size"] for event in trace if event["action"] == "alloc"]
    found.append([generator.get_offset() - before, sizes[-5:]])
print(json.dumps(found))
"""

# Of the first sample, five steps cannot be aligned to five equal labels.
CTC = """\
import json
import torch
from ferro_alloc import sim
generator = torch.Generator().manual_seed(1)
scores = torch.randn(5, 2, 4, generator=generator).log_softmax(2).cuda().requires_grad_()
labels = torch.ones(8, dtype=torch.int32)
losses = torch.nn.functional.ctc_loss(
    scores, labels, [5, 5], [5, 3], reduction="none", zero_infinity=True
)
losses.sum().backward()
print(json.dumps([losses.tolist(), scores.grad[0].tolist(), len(sim.uncomputed_reads())]))
"""

# The requests of attention's backward pass, without and with a mask.
MASKED_ATTENTION = """\
import json
import torch
query = torch.ones(4, 16, 759, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
mask = torch.ones(4, 1, 759, 759, device="cuda", dtype=torch.bool)
found = []
for given in (None, mask):
    out = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=given)
    torch.cuda.memory._record_memory_history(context=None)
    out.backward(torch.ones_like(out))
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    found.append([event["size"] for event in trace if event["action"] == "alloc"])
print(json.dumps(found))
"""

# What attention requests in a step of generation: many heads with few keys, few heads with many.
STEP_OF_GENERATION = """\
import json
import torch
found = []
for batch, heads, keys, size in ((96, 20, 129, 64), (1, 32, 20737, 128)):
    query = torch.ones(batch, heads, 1, size, device="cuda", dtype=torch.bfloat16)
    key = torch.ones(batch, heads, keys, size, device="cuda", dtype=torch.bfloat16)
    torch.cuda.memory._record_memory_history(context=None)
    torch.nn.functional.scaled_dot_product_attention(query, key, key)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    found.append([event["size"] for event in trace if event["action"] == "alloc"])
print(json.dumps(found))
"""

# The same of a backward pass whose gradient has another layout than the output.
TRANSPOSED_GRADIENT = """\
import json
import torch
query = torch.ones(16, 20, 288, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
gradient = torch.ones(16, 288, 20, 64, device="cuda", dtype=torch.bfloat16)
# PyTorch's thread for a device aborts if Python ends while it drops what it returned.
torch.autograd.set_multithreading_enabled(False)
found = []
for given in (gradient.transpose(1, 2), gradient.permute(0, 2, 3, 1).contiguous().mT):
    torch.cuda.memory._record_memory_history(context=None)
    torch.autograd.grad(out, query, given, retain_graph=True)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    found.append(sum(event["action"] == "alloc" for event in trace))
print(json.dumps(found))
"""

# cudnnBackendGetAttribute of a tensor's four sizes, without an array and with one for two sizes.
COUNTED = """\
import ctypes
import json
import torch
torch.backends.cudnn.version()
TENSOR, SIZES, INT64 = 17, 902, 3
cudnn = ctypes.CDLL("libcudnn.so.9")
tensor = ctypes.c_void_p()
cudnn.cudnnBackendCreateDescriptor(TENSOR, ctypes.byref(tensor))
sizes = (ctypes.c_int64 * 4)(5, 6, 7, 8)
cudnn.cudnnBackendSetAttribute(tensor, SIZES, INT64, ctypes.c_int64(4), sizes)
read = (ctypes.c_int64 * 4)()
counts = []
for requested, place in ((0, None), (2, read), (9, (ctypes.c_int64 * 9)())):
    count = ctypes.c_int64()
    cudnn.cudnnBackendGetAttribute(
        tensor, SIZES, INT64, ctypes.c_int64(requested), ctypes.byref(count), place
    )
    counts.append(count.value)
print(json.dumps([counts, list(read)]))
"""


@MODES
def test_small_layers_are_those_of_the_host(
    run_simulated: RunSimulated, activate: dict[str, Any]
) -> None:
    found = json.loads(run_simulated("sim_cudnn.py", **activate).stdout.splitlines()[-1])
    assert found["version"] >= 90000
    assert (found["cases"], found["wrong"], found["recurrent"]) == (7, [], [])
    assert found["chosen"] == [2, 4, 6, 6]
    assert found["failures"] == []
    # Gradients of recurrent networks are not computed, which is reported.
    assert (found["warned"], found["gradients"]) == (0, 1)


@pytest.mark.parametrize(("kept", "taken"), [(16, 48), (64, 16)])
def test_where_memory_is_short_another_engine_is_taken(
    run_simulated: RunSimulated, kept: int, taken: int
) -> None:
    done = run_simulated(SHORT.replace("MIB", str(kept)), memory="112MiB")
    assert json.loads(done.stdout) // (1 << 20) == taken


def test_attention_requests_what_it_does_on_an_h200(run_simulated: RunSimulated) -> None:
    rows = 4 * 8 * 100
    sizes = [8, 8, rows * 64 * 2, rows * 4, 256]
    assert json.loads(run_simulated(DROPOUT_IN_ATTENTION).stdout) == [
        [0, sizes],
        [rows * 30, sizes],
    ]


def test_impossible_alignments_have_the_loss_of_a_card(run_simulated: RunSimulated) -> None:
    losses, (impossible, aligned), uncomputed = json.loads(run_simulated(CTC).stdout)
    assert losses == pytest.approx([0.0, 7.6253085])  # an H200's
    assert impossible == [0.0] * 4
    assert aligned == pytest.approx([0.447, -0.731, 0.185, 0.099], abs=1e-3)
    assert uncomputed == 0


def test_attention_with_a_mask_takes_a_larger_workspace_backward(
    run_simulated: RunSimulated,
) -> None:
    plain, masked = json.loads(run_simulated(MASKED_ATTENTION).stdout)
    workspace = 4 * (4 * 16 * 759) * (128 + 1)
    assert workspace in plain
    assert workspace + 256 in masked  # an H200's


def test_attention_in_generation_requests_what_it_does_on_an_h200(
    run_simulated: RunSimulated,
) -> None:
    many, few = json.loads(run_simulated(STEP_OF_GENERATION).stdout)
    assert many == [8, 8, 96 * 20 * 64 * 2]
    assert sorted(few) == [8, 8, 32 * 128 * 2, 133248]


def test_attention_copies_no_gradient_with_dense_rows(run_simulated: RunSimulated) -> None:
    dense, transposed = json.loads(run_simulated(TRANSPOSED_GRADIENT).stdout)
    assert transposed == dense + 1


def test_an_attribute_counts_what_was_written(run_simulated: RunSimulated) -> None:
    assert json.loads(run_simulated(COUNTED).stdout) == [[4, 2, 4], [5, 6, 0, 0]]


def test_workspaces_are_about_those_of_a_gpu(run_program: RunProgram) -> None:
    done = run_program(BENCHMARKS / "training" / "workspaces.py", "--compare", str(STORED))
    near, total = done.stdout.splitlines()[-1].split(" are near; all of them: ")
    assert near.endswith(" of 2844")
    assert 0.95 <= float(total) <= 1.05


# A measured convolution, and one of more images; then normalizations. Bytes that an H100 requested.
MEASURED = """\
import json
import torch
import torch.nn.functional as F

def requested(work):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    results = work()
    after = torch.cuda.memory_stats()["requested_bytes.all.current"]
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - after

def convolution(images):
    frames = torch.zeros(images, 32, 42, 42, device="cuda")
    weight = torch.zeros(64, 32, 3, 3, device="cuda")
    return requested(lambda: F.conv2d(frames, weight, padding=1))

def normalization(images, channels, points, near):
    size = (images, channels, points, near)
    layer = torch.nn.BatchNorm2d(channels).cuda()
    given = torch.zeros(size, device="cuda").to(memory_format=torch.channels_last)
    given.requires_grad_()
    results = []
    forward = requested(lambda: results.append(layer(given)))
    gradient = torch.zeros_like(results[0])
    # The parameters' gradients, of four bytes each, are copied.
    backward = requested(lambda: results[0].backward(gradient)) - 2 * 4 * channels
    return forward, backward

print(json.dumps([
    [convolution(images) for images in (256, 300)],
    [normalization(*size) for size in ((8, 64, 2048, 20), (12, 64, 1536, 20), (8, 256, 256, 40))],
]))
"""


def test_workspaces_that_were_measured(run_simulated: RunSimulated) -> None:
    convolutions, normalizations = json.loads(run_simulated(MEASURED).stdout.splitlines()[-1])
    measured, like_it = convolutions
    assert measured == 57_876_496
    # It copies the images and the weights.
    copied = 4 * (300 * 42 * 42 * 32 + 64 * 32 * 9)
    assert copied <= like_it <= copied + 4096
    assert normalizations == [
        [2_642_996, 1_749_028],
        [2_973_236, 1_967_140],
        [2_643_008, 1_750_064],
    ]


# Sizes that cuDNN 9.19 answered on an H200: the workspace, and the reserve of training.
RECURRENT = """\
import json
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

def requested(make, inputs, steps, count, lengths=None, train=True, dtype=None, **options):
    cells = make(inputs, batch_first=False, **options).to("cuda", dtype).train(train)
    given = torch.zeros(steps, count, inputs, device="cuda", dtype=dtype)
    if lengths:
        given = pack_padded_sequence(given, torch.tensor(lengths))
    torch.cuda.memory._record_memory_history(context=None)
    with torch.set_grad_enabled(train):
        cells(given)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    return [event["size"] for event in events if event["action"] == "alloc"]

half, bfloat = torch.float16, torch.bfloat16
packed = [8] * 2 + [7] * 12 + [4] * 11 + [3] * 23
print(json.dumps([
    requested(
        nn.GRU, 1, 8, 48, packed, dtype=half,
        hidden_size=384, num_layers=2, bidirectional=True, dropout=0.2,
    ),
    requested(nn.LSTM, 256, 40, 16, dtype=half, hidden_size=128, num_layers=2),
    requested(nn.LSTM, 256, 40, 7, train=False, hidden_size=512, num_layers=2, bidirectional=True),
    requested(
        nn.GRU, 200, 5, 64, dtype=bfloat,
        hidden_size=100, num_layers=2, bidirectional=True, dropout=0.5,
    ),
    requested(
        nn.LSTM, 40, 10, 64,
        hidden_size=150, proj_size=75, num_layers=3, bidirectional=True, dropout=0.5,
    ),
    requested(nn.RNN, 256, 40, 16, hidden_size=128, num_layers=2),
]))
"""


def test_memory_of_recurrent_networks(run_simulated: RunSimulated) -> None:
    found = json.loads(run_simulated(RECURRENT).stdout.splitlines()[-1])
    answers = [
        {43_010_304, 4_327_168},
        {21_266_816, 1_802_496},
        {80_306_496},
        {35_913_600, 1_680_256},
        {61_711_232, 16_560_256},
        {23_429_504, 983_296},
    ]
    missing = [answer - set(sizes) for answer, sizes in zip(answers, found, strict=True)]
    assert missing == [set()] * len(answers)


# Attention of cuDNN, compared with PyTorch's own: shapes, layouts, and memory.
ATTENTION = """\
import json
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

def run(backend, heads=8, **options):
    size = (2, 256, 8, 64)
    query = torch.zeros(size, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    key = torch.zeros(2, heads, 256, 64, device="cuda", dtype=torch.bfloat16)
    given = [each.requires_grad_() for each in (query, key, key.clone())]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with sdpa_kernel(backend):
        output = F.scaled_dot_product_attention(*given, **options)
        output.sum().backward()
    shapes = [output.stride(), *(list(each.grad.shape) for each in given)]
    return shapes, torch.cuda.max_memory_allocated() - before

cases = [{}, {"is_causal": True, "dropout_p": 0.1}, {"heads": 2, "enable_gqa": True}]
backends = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
found = [[run(backend, **options) for backend in backends] for options in cases]
mask = torch.zeros(2, 8, 256, 256, device="cuda", dtype=torch.bfloat16)
masked = run(backends[0], attn_mask=mask)[0] == found[0][0][0]
graph = torch.cuda.CUDAGraph()
still = torch.zeros(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16)
with sdpa_kernel(backends[0]):
    F.scaled_dot_product_attention(still, still, still)
    with torch.cuda.graph(graph):
        captured = F.scaled_dot_product_attention(still, still, still)
graph.replay()
print(json.dumps([found, masked, list(captured.stride())]))
"""


def test_attention_of_cudnn_takes_what_that_of_pytorch_takes(run_simulated: RunSimulated) -> None:
    found, masked, captured = json.loads(run_simulated(ATTENTION).stdout.splitlines()[-1])
    assert all(shapes == of_flash for (shapes, _), (of_flash, _) in found)
    plain, with_dropout, of_groups = [[taken for _, taken in pair] for pair in found]
    assert abs(plain[0] - plain[1]) < 64 << 10
    assert with_dropout == plain
    # PyTorch's own attention first computes gradients for each head of the query.
    assert of_groups[0] < of_groups[1]
    assert masked
    assert captured == [8 * 256 * 64, 256 * 64, 64, 1]
