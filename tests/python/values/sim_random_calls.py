"""Ways to draw the same random numbers on the simulated GPU. Prints which of them differ."""

import json

import torch

wrong = []


def seeded(function, seed=7):
    torch.manual_seed(seed)
    return function().cpu()


def compare(name, one, other):
    if not torch.equal(one, other):
        wrong.append(name)


def out(result, *size):
    torch.rand(*size, out=result)
    return result


def own(seed=7):
    return torch.Generator("cuda").manual_seed(seed)


def after(state):
    torch.cuda.set_rng_state(state)
    return torch.rand(1000, device="cuda").cpu()


# Results that are views draw in the order of their memory.
wide = torch.zeros(300, 1000, device="cuda")
plain = seeded(lambda: torch.rand(300_000, device="cuda")).view(300, 1000)
compare("out", seeded(lambda: out(wide, 300, 1000)), plain)
compare("out, transposed", seeded(lambda: out(wide.t(), 1000, 300)), plain.t())
half = seeded(lambda: torch.rand(150_000, device="cuda")).view(300, 500)
wide.zero_()
compare("out, every second", seeded(lambda: out(wide[:, ::2], 300, 500)), half)
compare("between them", wide[:, 1::2].cpu(), torch.zeros(300, 500))
part = torch.zeros(8, 16, 32, device="cuda").permute(2, 0, 1)[:, :, 3:9]
ordered = seeded(lambda: torch.rand(8 * 6 * 32, device="cuda")).view(8, 6, 32).permute(2, 0, 1)
compare("a permuted slice", seeded(part.uniform_), ordered)
compare("like", seeded(lambda: torch.rand_like(wide)), plain)
compare("in place", seeded(lambda: wide.uniform_()), plain)

# Generators.
numbers = seeded(lambda: torch.rand(1000, device="cuda"))
compare("generator", torch.rand(1000, device="cuda", generator=own()).cpu(), numbers)
first = own()
torch.rand(1000, device="cuda", generator=first)
torch.manual_seed(7)
torch.rand(1000, device="cuda")
state = torch.cuda.get_rng_state()
second = torch.rand(1000, device="cuda").cpu()
compare("second", torch.rand(1000, device="cuda", generator=first).cpu(), second)
compare("state", after(state), second)
drawn = torch.rand(1000, device="cuda")
late = torch.rand(1000, device="cuda", generator=own())
torch.manual_seed(8)
compare("drawn before a seed, read after it", late.cpu(), numbers)
compare("a seed that is set later", seeded(lambda: torch.rand(1000, device="cuda")), numbers)

# Complex numbers are pairs.
pairs = seeded(lambda: torch.empty(2000, device="cuda").normal_(0, 0.5**0.5)).view(-1, 2)
drawn = seeded(lambda: torch.randn(1000, dtype=torch.complex64, device="cuda"))
compare("complex", torch.view_as_real(drawn), pairs)
pairs = seeded(lambda: torch.rand(2000, device="cuda")).view(-1, 2)
drawn = seeded(lambda: torch.rand(1000, dtype=torch.complex64, device="cuda"))
compare("complex, uniform", torch.view_as_real(drawn), pairs)

# Probabilities of a tensor, in the order of memory.
chances = torch.full((1000, 40), 0.3, device="cuda")
known = seeded(lambda: torch.bernoulli(chances))
drawn = seeded(lambda: wide[:40].t().bernoulli_(chances[:1, :1]))
compare("bernoulli", drawn.t().reshape(-1), known.reshape(-1))
rounded = seeded(lambda: torch.bernoulli(chances.half())).float()
compare("bernoulli, 16 bits", seeded(lambda: chances.bernoulli_(chances.half())), rounded)

# A dropout's mask has the place of each element that is left.
ones = torch.ones(1001, 77, device="cuda")
for shape in ((1000, 76), (1001, 77)):
    values = torch.arange(1.0, 1 + shape[0] * shape[1], device="cuda").view(shape)
    dropped, mask = torch.native_dropout(values, 0.25, True)
    torch.testing.assert_close(dropped, values * mask / 0.75)
    wrong.extend(["dropout"] if not 0.74 < mask.float().mean() < 0.76 else [])

mask = seeded(lambda: torch.rand(1_081_349, device="cuda") < 0.9)
chosen = seeded(lambda: wide[torch.rand(300, 1000, device="cuda") < 0.9])
first = []
for size in (10, 255, 1_081_349):
    first.append(seeded(lambda n=size: torch.rand(n, device="cuda"))[:: max(size // 5, 1)].tolist())
found = {"wrong": wrong, "mask": mask.sum().item(), "rows": chosen.numel(), "first": first}
print(json.dumps(found))
