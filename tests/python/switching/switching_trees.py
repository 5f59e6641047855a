"""Cudagraph trees of torch.compile across a switch, with PyTorch's checks of its pools enabled."""

import gc
import json
from concurrent.futures import ThreadPoolExecutor

import torch
import torch._inductor.config

import ferro_alloc

torch._inductor.config.triton.slow_path_cudagraph_asserts = True
torch._inductor.config.triton.fast_path_cudagraph_asserts = True
seen = {}


def function(x):
    return x.repeat(4).view(-1).clone()


def use(compiled):
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.arange(64, dtype=torch.int32).cuda()
        y = compiled(x)
        z = compiled(y[:64].clone())
        assert len(y) == len(z) == 256
    return torch.cuda.get_allocator_backend()


def compiled(extra=0):
    return torch.compile(lambda x: function(x) + extra, backend="cudagraphs")


def reset():
    torch.compiler.reset()
    gc.collect()


def refusal():
    try:
        ferro_alloc.install()
    except ferro_alloc.FerroError as error:
        return str(error)
    return ""


use(compiled())
seen["refused"] = refusal()
with ThreadPoolExecutor(1) as other:
    seen["refused in another thread"] = other.submit(refusal).result()
reset()
ferro_alloc.install()
kept = compiled()
seen["installed"] = use(kept)
ferro_alloc.uninstall()
seen["uninstalled"] = use(kept)
seen["another function in the same trees"] = use(compiled(1))
ferro_alloc.install()
seen["installed once more"] = use(kept)
ferro_alloc.uninstall()
reset()
seen["new trees"] = use(compiled())
ferro_alloc.uninstall()
del kept
reset()
torch.cuda.empty_cache()
seen["left"] = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
ferro_alloc.install()
seen["installed again"] = use(compiled())
print(json.dumps(seen))
