"""Random operators on the simulated GPU, and how sure what follows from their results is.

Prints the operators that draw random numbers and have a kernel for both devices, and for each case
what it expects, the operators that it called, and what the program learned in each way to read.
"""

import json
import sys
from pathlib import Path

import torch
from torch.autograd.profiler import profile

from ferro_alloc import sim

CARD, SAME, DRAWN, UNKNOWN = "card", "same", "drawn", "unknown"
"""The results are those of a card; follow from no random numbers; are others; are not computed."""

NUMBERS = "dtype=torch.float32, device='cuda'"
COLUMNS = f"torch.empty(300, 1000, {NUMBERS})[:, ::2]"
LINE = "torch.linspace(-1, 1, 1000, device='cuda').to(torch.float32)"
RISE = "torch.linspace(0, 1, 1000, device='cuda').to(torch.float32)"
WEIGHTS = "torch.arange(1., 1001., device='cuda')"
ROWS = f"{WEIGHTS}.to(torch.float32).expand(64, 1000)"
DROPOUT = "torch.nn.functional.dropout"
LONGS = "dtype=torch.int64, device='cuda'"
LSTM = "torch.nn.LSTM(4, 4, 2, dropout={}).cuda().train({})(torch.ones(3, 2, 4, device='cuda'))[0]"
NOISE = "torch._C._nn.rrelu_with_noise({0}, {1}, 0.1, 0.3, True{2})"
EMPTY = f"torch.empty(1000, {NUMBERS})"

CASES = {
    CARD: {
        "uniform_": [f"torch.rand(1000, {NUMBERS})", f"{COLUMNS}.uniform_(-3, 5)"],
        "normal_": [f"torch.randn(1000, {NUMBERS})", f"{COLUMNS}.normal_(2, 0.5)"],
        "log_normal_": [f"{EMPTY}.log_normal_()", f"{COLUMNS}.log_normal_()"],
        "cauchy_": [f"{EMPTY}.cauchy_()", f"{COLUMNS}.cauchy_()"],
        "exponential_": [f"{EMPTY}.exponential_(1.5)", f"{COLUMNS}.exponential_()"],
        "geometric_": ["torch.empty(1000, dtype=torch.int32, device='cuda').geometric_(0.2)"],
        "bernoulli_.float": [
            f"{EMPTY}.bernoulli_(0.3)",
            f"{COLUMNS}.bernoulli_(0.3)",
            f"{DROPOUT}(torch.ones((300, 1000), {NUMBERS})[:, ::2], 0.4, inplace=True)",
            f"torch.nn.functional.alpha_dropout({LINE}, 0.4, True)",
            f"torch.nn.functional.dropout2d(torch.ones((64, 30, 3, 3), {NUMBERS}), 0.4)",
        ],
        "bernoulli_.Tensor": [
            f"torch.empty(20, 50, {NUMBERS}).bernoulli_(torch.linspace(0, 1, 2000, device='cuda')"
            ".to(torch.float16).clamp(0, 1).view(20, 100)[:, ::2])"
        ],
        "bernoulli.out": [f"torch.bernoulli({RISE}.clamp(0, 1), out={EMPTY})"],
        "random_": [f"torch.empty(1000, {LONGS}).random_()", f"{COLUMNS}.random_()"],
        "random_.from": [f"torch.randint(3, 100, (1000,), {LONGS})"],
        "random_.to": [f"torch.empty(1000, {LONGS}).random_(-2**63, None)"],
        "randperm.generator_out": [f"torch.randperm(1000, {LONGS})"],
        "native_dropout": [
            f"{DROPOUT}(torch.ones(1000, {NUMBERS})[::2], 0.4)",
            f"{DROPOUT}(torch.ones((300, 1000), {NUMBERS})[:, ::2], 0.4)",
            f"{DROPOUT}(torch.ones((300, 1), {NUMBERS}).expand(300, 77), 0.4)",
        ],
        "rrelu_with_noise": [f"torch.nn.functional.rrelu({LINE}, training=True)"],
        "rrelu_with_noise_": [
            "torch.nn.functional.rrelu_(torch.linspace(-1, 1, 300000, device='cuda')"
            ".to(torch.float32).view(300, 1000)[:, ::2], training=True)"
        ],
        "rrelu_with_noise.out": [NOISE.format(LINE, EMPTY, f", out={EMPTY}")],
        "multinomial": [
            f"torch.multinomial({WEIGHTS}.to(torch.float32), 10, False)",
            f"torch.multinomial({WEIGHTS}.to(torch.float32), 10, True)",
            f"torch.multinomial({WEIGHTS}.to(torch.float64).expand(64, 1000), 10, False)",
            f"torch.multinomial({WEIGHTS}.to(torch.float64).expand(64, 1000), 10000, True)",
        ],
        "multinomial.out": [f"torch.multinomial({ROWS}, 5, out=torch.empty(5, 64, {LONGS}).t())"],
        "normal.Tensor_float": ["torch.normal(torch.zeros(1000, device='cuda'), 2.0)"],
        "normal.float_Tensor": [f"torch.normal(3.0, {RISE})"],
        "normal.Tensor_Tensor": [f"torch.normal({LINE}, {RISE})"],
        "normal.Tensor_float_out": [f"torch.normal({LINE}, 2.0, out={EMPTY})"],
        "normal.float_Tensor_out": [
            f"torch.normal(3.0, {RISE}, out=torch.empty(2000, {NUMBERS})[::2])"
        ],
        "normal.Tensor_Tensor_out": [
            f"torch.normal({LINE}.view(10, 100), {RISE}.view(10, 100), "
            f"out=torch.empty(100, 10, {NUMBERS}).t())"
        ],
    },
    SAME: {
        "native_dropout": [
            "torch.native_dropout(torch.ones(1000, device='cuda'), 0.4, False)[1]",
            "torch.native_dropout(torch.ones(1000, device='cuda'), 1.0, True)[1]",
        ],
        "rrelu_with_noise": [
            "torch.nn.functional.rrelu(torch.linspace(-1, 1, 1000, device='cuda'))"
        ],
        "_cudnn_rnn": [LSTM.format(0.5, False), LSTM.format(0.0, True)],
    },
    DRAWN: {
        "geometric_": [f"{COLUMNS}.geometric_(0.2)"],
        "poisson": ["torch.poisson(torch.full((1000,), 3.0, device='cuda'))"],
        "binomial": ["torch.binomial(*torch.full((2, 1000), 0.5, device='cuda').ceil().mul(0.5))"],
        "_standard_gamma": [
            "torch._standard_gamma(torch.full((1000,), 2.0, device='cuda'))",
            "torch.distributions.Gamma(*torch.full((2, 1000), 2.0, device='cuda')).sample()",
        ],
        "_sample_dirichlet": [
            "torch._sample_dirichlet(torch.full((100, 10), 2.0, device='cuda'))",
            "torch.distributions.Beta(*torch.full((2, 1000), 2.0, device='cuda')).sample()",
        ],
        "multinomial": [
            f"torch.multinomial({WEIGHTS}, 100000, True)",
            f"torch.multinomial({ROWS}, 10000, True)",
            f"torch.multinomial({WEIGHTS}.half(), 1)",
            f"torch.multinomial({WEIGHTS}.bfloat16().view(10, 100), 5)",
            f"torch.multinomial({WEIGHTS}.half().view(10, 100), 5, True)",
        ],
        # The card keeps no noise in a layout with gaps.
        "rrelu_with_noise": [NOISE.format(LINE, f"torch.empty(2000, {NUMBERS})[::2]", "")],
    },
    UNKNOWN: {
        "_cudnn_rnn": [LSTM.format(0.5, True)],
        "_fused_dropout": ["torch._fused_dropout(torch.ones(1000, device='cuda'), 0.5)[1]"],
        "scaled_dot_product_attention": [
            "torch.nn.functional.scaled_dot_product_attention("
            "*torch.ones(3, 1, 2, 4, 8, device='cuda'), dropout_p=0.5)"
        ],
    },
}
READS = {
    "rows": "(drawn > 0.5).nonzero()",
    "a selection": "drawn[drawn > 0.5]",
    "unique": "torch.unique(drawn)",
    "a sum": "torch.zeros(int((drawn > 0.5).sum()) % 7, device='cuda')",
    "a count": "torch.bincount((drawn > 0.5).long(), minlength=2)[1].item()",
    "a branch": "1 if (drawn > 0.5).any() else 0",
    "a copy": "(drawn > 0.5).cpu()",
    "a copy and back": "torch.cat([drawn.cpu().cuda(), drawn]).gt(0.5).nonzero()",
}


def operators():
    """Those of PyTorch that draw random numbers and have kernels for cards and hosts."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or schema.name == "aten::_fused_sdp_choice":
            continue
        name = ".".join(filter(None, [schema.name, schema.overload_name]))
        try:
            on = [
                torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CUDA", "CPU")
            ]
        except RuntimeError:  # not of the dispatcher
            continue
        overload = getattr(
            getattr(torch.ops.aten, schema.name.removeprefix("aten::")),
            schema.overload_name or "default",
        )
        draws = torch.Tag.nondeterministic_seeded in overload.tags or any(
            argument.name == "generator" for argument in schema.arguments
        )
        if draws and all(on):
            found.append(name.removeprefix("aten::"))
    return sorted(found)


def run(number, expression):
    torch.manual_seed(7)
    with profile(use_kineto=False) as called:
        drawn = eval(expression).reshape(-1)
    learned = {}
    for way, read in READS.items():
        place = f"case{number} {way}.py"
        eval(compile(read, place, "eval"), {"torch": torch, "drawn": drawn})
        learned[way] = sorted(
            found.learned for found in sim.uncomputed_reads() if found.place.startswith(place)
        )
    return sorted({event.name.removeprefix("aten::") for event in called.function_events}), learned


recorded = {case[0] for case in json.loads(Path(sys.argv[1]).read_text())["cases"]}
results = []
for expected, by_operator in CASES.items():
    for operator, expressions in by_operator.items():
        for expression in expressions:
            called, learned = run(len(results), expression)
            results.append(
                {
                    "expected": expected,
                    "operator": operator,
                    "expression": expression,
                    "called": called,
                    "learned": learned,
                    "recorded": expression in recorded,
                }
            )
print(json.dumps({"operators": operators(), "cases": results}))
