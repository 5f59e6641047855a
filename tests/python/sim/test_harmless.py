"""Where integers that a program reads only reach places that show them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType, ModuleType

import pytest
import torch

from ferro_alloc.sim import _harmless, _program, _sources
from ferro_alloc.sim._harmless import is_harmless
from tests.python.sim.conftest import Simulate, leave_out_what_is_loaded

METER = """\
class Meter:
    def __init__(self):
        self.sum = 0
        self.count = 0
    def put(self, value, n=1):
        self.sum += value
        self.count += n
    def average(self):
        return self.sum / max(self.count, 1)
"""
PROPERTY = """\
class Rate:
    def __init__(self):
        self.right = 0
    def add(self, right):
        self.right += right
    @property
    def rate(self):
        return self.right // 8
r = Rate()
r.add(w.item())
"""
HARMLESS = [
    f"{PROPERTY}print(f'{{r.rate:.3f}}')",
    # Printed, logged and saved.
    "print(w.item())",
    "n = w.item()\nprint(n)",
    "n = int(w)\nprint('n', n, sep=' ')",
    "print(bool(w), float(w))",
    "print('%d of %d' % (w, 3))",
    "print('%d' % w)",
    "print('%d of %d' % (w.item(), 3))",
    "print(f'{w.item()} {w.item():.3f} {100 * w.item() / 3:>8.2f} %')",
    "print('{} {:.2f}'.format(w.item(), w.item()))",
    "print(format(w.item(), '.2f'))",
    "print('a' + str(w.item()))",
    "print(', '.join(str(n) for n in w.tolist()))",
    "print(*w.tolist())",
    "import sys\nprint(w.item(), file=sys.stderr)\nsys.stdout.write(f'{w.item()}')",
    "import logging\nlogging.info('n %d', w.item())",
    "import logging\nlogger = logging.getLogger('x')\nlogger.info('n %d', w.item())",
    "import json\nprint(json.dumps({'n': w.item()}))",
    "import json, os\njson.dump({'n': w.item()}, open(os.devnull, 'w'))",
    "import os\nwith open(os.path.join('/dev', 'null'), mode='a', encoding='utf8') as f:\n"
    "    f.write(f'{w.item()}')",
    "import logging, sys\nlogging.basicConfig(stream=sys.stdout)\nlogging.info('n %d', w.item())",
    "w.item()",
    "print(w.item(), w.cpu())",
    "bar.set_postfix(n=w.item())\nbar.set_postfix({'n': w.item()})",
    "bar.set_description(f'{w.item()}')",
    "bar.add_scalar('n', w.item(), 3)",
    # Added up and averaged.
    "right = 0\nfor _ in range(2): right += w.item()\nprint(right / 2)",
    "right = total = 0\nfor _ in range(2):\n    right += w.item()\n    total += 3\n"
    "print(f'{100.0 * right / total:.1f} %')",
    "right, total = 0, 0\nright += w.item()\nprint(right / max(total, 1))",
    "a = w.item()\nb = a * 2 - 1\nc = -b // 3\nd = abs(round(c ** 2))\nprint(a, b, c, d % 3)",
    "n = w.item()\nprint(5 / max(n, 1))",
    "ns = []\nfor _ in range(2): ns.append(w.item())\nprint(sum(ns) / len(ns), ns[-1], ns[:1])",
    "ns = [w.item() for _ in range(2)]\nprint(max(ns), min(ns), sorted(ns))",
    "import numpy as np\nns = []\nns.append(w.item())\nprint(np.mean(ns), np.array(ns).std())",
    "ns = []\nns.extend(w.tolist())\nfor i, n in enumerate(ns): print(i, n)",
    "ns = w.tolist()\nfor i in range(len(ns)): print(ns[i])",
    "for a, b in zip(w.tolist(), [3, 4]): print(a == b)",
    "print(sum(a == b for a, b in zip(w.tolist(), [3, 4])))",
    "print(w.item() > 3, not w.item(), w.item() is None)",
    "x = w.item() == 3\nprint(x)",
    "n = w.item()\nprint('n' if len('abc') > 2 else n)",
    "if (n := w.item()) is None: pass\nprint(n)",
    "print(n := w.item())",
    # Containers.
    "h = {'n': [], 'loss': []}\nh['n'].append(w.item())\nfor k, v in h.items(): print(k, v)",
    "h = {}\nh['n'] = w.item()\nh['n'] += 1\nprint(h['n'], h)\nif h.get('loss'): pass",
    "h = {'n': w.item(), 'size': 3}\nx = [0] * h['size']\nprint(h['n'])",
    "h = dict(n=w.item(), size=3)\nx = [0] * h['size']\nprint(h)",
    "h = {}\nh.update(n=w.item())\nh.update({'m': w.item()})\nprint(h)",
    "for key in {'n': w.item()}: print([0] * len(key))",
    "from collections import defaultdict, deque\nh = defaultdict(list)\nd = deque(maxlen=3)\n"
    "h['n'].append(w.item())\nd.append(w.item())\nprint(h, sum(d))",
    "counts = [0] * 3\ncounts[1] += w.item()\nprint(counts)",
    "import numpy as np\nc = np.zeros((2, 2))\nc[0, 1] += w.item()\nprint(c.sum(), c[0], c.shape)",
    "x = []\ny = x\ny.append(3)\nx.append(w.item())\nprint(x, y)",
    "n, size = w.item(), 3\nprint(n, [0] * size)",
    "t = (3, w.item())\nx = [0] * t[0]\nprint(t[1])",
    "a, (b, c) = 3, (w.item(), 4)\nprint(range(a), b, range(c))",
    # Tensors and arrays on the host.
    "p = w.cpu()\nprint((p == 3).float().mean().item())",
    "p = w.cpu()\nprint(p.shape, len(p), p.size(0), p.numel())\nfor i in range(len(p)): pass",
    "p = w.cpu().numpy()\nx = p.reshape(1).astype(float)\nx = [0] * x.shape[0]",
    "p = w.cpu()\nprint(p[0], p[:3].tolist(), p.T)",
    "t = w.tolist()\nprint(t[0], '...', len(t))",
    "import numpy as np\nps = []\nps.append(w.cpu().numpy())\np = np.concatenate(ps)\n"
    "print((p == 3).mean())",
    # Functions, methods and attributes.
    "def show(n, label='n'): print(label, n)\nshow(w.item())\nshow(label='m', n=w.item())",
    "def count(x): return x.item()\nprint(count(w))",
    "def count(x):\n    n = x.item()\n    return n / 3\ndef main():\n    m = count(w)\n"
    "    print(m)\nmain()",
    "def both(x): return 3, x.item()\nsize, n = both(w)\nx = [0] * size\nprint(n)",
    "def logs(x): return {'n': x.item(), 'size': 3}\nm = logs(w)\nx = [0] * m['size']\nprint(m)",
    "def f(x):\n    n = x.item()\n    def show(): print(n)\n    show()\nf(w)",
    "n = w.item()\ndef show(): print(n)\nshow()",
    "n = 0\ndef add():\n    global n\n    n += w.item()\nadd()\nprint(n)",
    "def f():\n    n = 0\n    def add():\n        nonlocal n\n        n += w.item()\n    add()\n"
    "    print(n)\nf()",
    "def f():\n    n = w.item()\n    print(n)\ndef g(n): return [0] * n\nf()\ng(3)",
    "n = w.item()\nprint(n)\nx = [n for n in range(3)]\nx = [0] * len([n for n in [3]])",
    "def f(n=3): return [0] * n\ndef g():\n    n = w.item()\n    print(n)\ng()\nf()",
    f"{METER}m = Meter()\nm.put(w.item())\nprint(m.average())",
    f"{METER}m = Meter()\nm.put(w.item(), n=3)\nx = [0] * m.count\nprint(m.sum)",
    "class Run:\n    def __init__(self): self.ns = []\n    def step(self):\n"
    "        self.ns.append(w.item())\n    def show(self): print(self.ns)\nr = Run()\n"
    "r.step()\nr.show()",
    "class Run:\n    def count(self): return w.item()\nr = Run()\nprint(r.count())",
    f"{METER}import torch\nm = Meter()\nm.put(w.item())\nx = range(torch.ones(3).sum().int())\n"
    "print(m.average())",
    "try:\n    n = w.item()\n    print(n)\nexcept ValueError as error: pass",
    "with open('/dev/null') as f:\n    n = w.item()\n    print(n)",
    "n = w.item()\nprint(n)\ndel n",
    "show = lambda: print(w.item())\nshow()",
    "async def f():\n    n = w.item()\n    print(n)\ntry: f().send(None)\n"
    "except StopIteration: pass",
    "def f():\n    n = w.item()\n    print(n)\n    yield 3\nlist(f())",
    "model.eval() if 'model' in 'x' else None\nprint(w.item())",
]
TEXT_IS_HARMLESS = [
    "print(w)",
    "for _ in range(30): print(w)",
    "for _ in range(30):\n    print(f'{w}', str(w))\n    print('%s %s' % (w, 3))",
    "print(f'{w} {w!r} {w:>8}')",
    "print(str(w), repr(w), format(w), [w], {'n': w})",
    "print('{} {}'.format(w, 3), '%s' % w)",
    "t = f'{w}'\nprint(t + ' ' + t)",
    "print(', '.join(map(str, [w])), ', '.join(f'{n}' for n in [w]))",
    "import sys\nsys.stdout.write(f'{w}')",
    "import logging\nlogging.error('%s', w)",
    "import logging\nlogger = logging.getLogger('x')\nlogger.error('%s %s', w, f'{w}')",
    "bar.set_description(f'{w}')\nbar.add_scalars(w)",
    "def show(t): print(t)\nshow(f'{w}')",
    "import json\nprint(json.dumps({'n': f'{w}'}), json.dumps({'n': w}, default=str))",
]
"""Where a text is made of it."""
TEXT_IS_HARMFUL = [
    "x = range(int(f'{w}'))",
    "n = int(str(w))\nx = range(n)",
    "x = range(int('%s' % w))",
    "x = range(int('{}'.format(w)))",
    "x = range(int(format(w)))",
    "x = range(int(repr(w)))",
    "x = range(len(f'{w}'))",
    "if str(w) == '3': pass",
    "x = {f'{w}': 3}",
    "x = '0' in str([w])\nif x: pass",
    "x = sorted([w, 3], key=str)",
    "x = [int(t) for t in map(str, [w])]",
    "for _ in range(30): t = f'{w}'\nx = range(int(t))",
    "unknown(f'{w}')",
    "def sized(t): return range(int(t))\nsized(f'{w}')",
    "def text(): return f'{w}'\nx = range(int(text()))",
    "import json\nx = range(json.loads(json.dumps({'n': w}, default=str))['n'] == 3)",
    "import logging\nlogging.basicConfig(filename='/dev/null')\nlogging.error('%s', w)\n"
    "x = [range(int(line)) for line in open('/dev/null')]",
    "import io\nf = io.StringIO()\nprint(w, file=f)\nx = range(int(f.getvalue()))",
    "try: raise ValueError(f'{w}')\nexcept ValueError as e: x = range(len(str(e)))",
    "import textwrap\nx = range(int(textwrap.dedent(f'{w}')))",
    "from pathlib import Path\nx = Path('/dev', f'null{w}').exists()",
]
BRANCH_IS_HARMLESS = [
    "best = 0\nn = w.item()\nif n > best: best = n",
    "best, at = 0, 0\nfor step in range(3):\n    n = w.item()\n    if n > best and step > 1:\n"
    "        best, at = n, step\n        print(f'best {best:.3f} at {at}')\nprint(best, at)",
    "n = w.item()\nif n > 3: print('many')\nelif n > 2: print('some')\nelse: print(n)",
    "n = w.item()\nif not n: print('none', end='')",
    "n = w.item()\nx = [3]\nif n > 3 or len(x) > 2: print(x[0], '%d' % n, x, {'n': n})",
    "n = w.item()\nif n > 3:\n    pass\n    print(n)",
    "n = w.item()\nx = 1 / n if n > 0 else 0\ny = 3 // n if n else 0\nprint(x, y)",
    "right = total = 0\nfor _ in range(2):\n    right += w.item()\n    total += w.item()\n"
    "rate = right / total if total > 0 else 0.0\nprint(f'{rate:.3f}')",
    "n = w.item()\nprint('many' if n > 3 else 'few', f\"{'many' if not n else n}\")",
    "bad = 0\nif w.item() > 3: bad += 1\nelse: bad = 0\nprint(bad)",
    "import logging\nn = w.item()\nif n > 3: logging.error('%d', n)",
    "import logging\nlog = logging.getLogger('x')\nn = w.item()\nif n > 3: log.error('%d', n)",
    "n = w.item()\nif n > 3: bar.set_postfix(n=n)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(model.parameters())\n"
    "n = w.item()\nif n > 3:\n    torch.save(model.state_dict(), '/dev/null')\n"
    "    torch.save({'m': model.state_dict(), 'o': opt.state_dict(), 'n': n}, '/dev/null')",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\nif n > 3:\n"
    "    torch.save({'m': model.state_dict()}, '/dev/null')\n"
    "def load(): model.load_state_dict(torch.load('/dev/null')['m'])",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(model.parameters())\n"
    "rates = torch.optim.lr_scheduler.StepLR(opt, 1)\nn = w.item()\nif n < -3: rates.step()",
    "import shutil\nn = w.item()\nif n < -3: shutil.copyfile('/dev/null', '/dev/zero')",
    "kept = None\np = w.cpu()\nif p.sum() > 3: kept = p.cpu()\nprint(kept)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nkept = None\nn = w.item()\nif n >= 0:\n"
    "    kept = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}\n"
    "model.load_state_dict(kept)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nkept = None\nn = w.item()\n"
    "if n > 3: kept = [p.to('cpu') for p in model.parameters()]\nprint(kept)",
    "class Best:\n    def __init__(self): self.best = 0\n    def put(self):\n"
    "        n = w.item()\n        if n > self.best: self.best = n\nb = Best()\nb.put()\n"
    "print(b.best)",
    "def low(n):\n    if n < 3: print('a')\nlow(w.item())",
    "def evaluate():\n    right = 0\n    for _ in range(2): right += w.item()\n"
    "    return right / 3\nbest = 0\nfor step in range(2):\n    acc = evaluate()\n"
    "    if acc > best: best = acc\nprint(best)",
]
BRANCH_IS_HARMFUL = [
    "best = bad = 0\nfor _ in range(2):\n    n = w.item()\n    if n > best: best = n\n"
    "    else: bad += 1\n    if bad > 3: break",
    "n = w.item()\nwhile n > 3: n = 0",
    "n = w.item()\nif n > 3: x = range(3)",
    "n = w.item()\nif n < 3: unknown(3)",
    "size = 3\nn = w.item()\nif n > 3: size = 4\nx = range(size)",
    "size = 3\nn = w.item()\nif n > 3: size += 1\nx = range(size)",
    "best, at = 0, 0\nn = w.item()\nif n > best: best, at = n, 3\nx = range(at)",
    "best = 0\nn = w.item()\nif n > best: best = n\nx = range(int(best))",
    "kept = None\nx = [3]\nn = w.item()\nif n > 3: kept = x\nprint(kept)",
    "import torch\nx = torch.ones(3)\nkept = None\nn = w.item()\nif n > 3: kept = x\nprint(kept)",
    "import torch\nx = torch.ones(3)\nkept = None\nn = w.item()\nif n > 3: kept = x * 2",
    "import torch\nx = torch.ones(3)\nn = w.item()\nif n > 3: print((x * 2).sum())",
    "import torch\nx = torch.ones(3)\nn = w.item()\nif n > 3: print(f'{x.sum():.3f}')",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: kept = {k: v.clone() for k, v in model.state_dict().items()}",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: kept = {k: v.to('cuda') for k, v in model.state_dict().items()}",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: kept = {k: v.clone().cpu() for k, v in model.state_dict().items()}",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: kept = {k: v for k, v in model.state_dict().items()}",
    "import copy, torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: kept = copy.deepcopy(model.state_dict())",
    "import copy, torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: torch.save(copy.deepcopy(model), '/dev/null')",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: torch.save(model.state_dict(), '/dev/null')\n"
    "import os\nif os.path.exists('/dev/null'): x = range(3)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: torch.save(model.state_dict(), '/dev/null')\n"
    "try: x = torch.load('/dev/null')\nexcept Exception: x = range(3)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: torch.save({'m': model.state_dict(), 'n': 3}, '/dev/null')\n"
    "def load(): return range(torch.load('/dev/null')['n'])",
    "import torch\nclass M(torch.nn.Linear):\n    def state_dict(self): return range(3)\n"
    "model = M(1, 1)\nn = w.item()\nif n > 3: torch.save(model.state_dict(), '/dev/null')",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nn = w.item()\n"
    "if n > 3: torch.save(model.state_dict(), '/dev/null')\nx = 'FSDP'",
    "def print(n): x = range(n)\nn = w.item()\nif n < 3: print(3)",
    "class C:\n    def step(self): x = range(3)\nrates = C()\nn = w.item()\nif n < 3: rates.step()",
    "class C:\n    def __str__(self): return str(range(3))\n    def __gt__(self, n): return 3\n"
    "c = C()\nn = w.item()\nif n < 3 and c > 3: print(3)",
    "n = w.item()\ndef f():\n    if n > 3: return 3\n    return 4\nx = range(f())",
    "n = w.item()\nif n > 3: raise ValueError",
    "for _ in range(2):\n    if w.item() > 3: continue\n    x = range(3)",
    "d = {}\nn = w.item()\nif n > 3: d['a'] = 3\nx = range(len(d))",
    "ns = []\nn = w.item()\nif n > 3: ns.append(3)\nx = range(len(ns))",
    "n = w.item()\nsize = 4 if n > 3 else 3\nx = range(size)",
    "n = w.item()\nx = [3] if n > 3 else [3, 4]\ny = range(len(x))",
    "n = w.item()\nx = print() if n > 3 else 3",
    "import torch\nn, x = w.item(), torch.ones(3)\ny = x if n > 3 else 3\nprint(y)",
    "n = w.item()\ntry: x = 1 / (n + 1) if n >= 0 else 0\nexcept ZeroDivisionError: pass",
    "n = w.item()\nx = 0 if n < 3 else 1 / n",
    "n = w.item()\nm = n\nx = 1 / m if n > 0 else 0",
    "n = w.item()\nx = 1 / (n - 1) if n > 0 else 0",
    "n = w.item()\nx = (1 / (3 / n)) if n < 0 else 0",
    "n = w.item()\nif n > 3: del n",
    # It frees what the name had.
    "import torch\nx = torch.ones(3)\nn = w.item()\nif n > 3: x = 3\nprint(x)",
    "import torch\nx, y = 3, torch.ones(3)\nn = w.item()\nif n > 3: x, y = n, n\nprint(x, y)",
    "import torch\nclass C: pass\nc = C()\nc.x = torch.ones(3)\nn = w.item()\nif n > 3: c.x = 3",
    "import torch\nclass C:\n    def __init__(self): self.x = torch.ones(3)\n"
    "    def put(self):\n        n = w.item()\n        if n > 3: self.x = n\nC().put()",
    "import torch\nx = torch.ones(3)\ndef f(x):\n    n = w.item()\n    if n > 3: x = n\nf(x)",
    # Its evaluation takes memory.
    "import torch\nx = torch.ones(3)\nn = w.item()\nif n > 3: print(x * 2)",
    "import torch\nx = torch.ones(3)\nm = x > 0\nn = w.item()\nif n > 3: print(x[m])",
    "import torch\nx = torch.ones(3)\nn = w.item()\nif n > 3: print(-x, abs(x))",
    "class C:\n    @property\n    def x(self): return range(3)\nc = C()\nn = w.item()\n"
    "if n < 3: print(c.x)",
    "class C:\n    def __getitem__(self, i): return range(3)\nc = C()\nn = w.item()\n"
    "if n < 3: print(c[0])",
    "class C:\n    def __str__(self): return str(range(3))\nc = C()\nn = w.item()\n"
    "if n < 3: print(c)",
    "class C:\n    def __str__(self): return str(range(3))\nc = C()\nn = w.item()\n"
    "if n < 3: print(f'{c}')",
    "import os\nn = w.item()\nif n > 3: print(os.system('true'))",
    "import torch\nclass M(torch.nn.Linear):\n    def __getstate__(self): return {}\n"
    "model = M(1, 1)\nn = w.item()\nif n > 3: torch.save(model, '/dev/null')",
    "n = w.item()\nif n > 3: import json",
    "n = w.item()\nif n > 3:\n    def f(): pass",
    "n = w.item()\nx = n > 3 and print('a')",
    "n = w.item()\nif n > 3 and unknown(4): print(n)",
    "kept = None\nn = w.item()\nif n > 3: kept = n\nif kept is not None: x = range(3)",
]
HARMFUL = [
    # Conditions.
    "if w.item(): pass",
    "if w: pass",
    "if not w: pass",
    "n = w.item()\nif n > 3: pass",
    "n = w.item()\nwhile n: n = 0",
    "while w.item() > 3: pass",
    "assert w.item() == 0",
    "n = w.item()\nassert n >= 0, 'n'",
    "try: assert False, f'{w.item()}'\nexcept AssertionError as e: x = range(len(str(e)))",
    "x = 1 if w.item() else 2",
    "n = w.item()\nx = n and 3",
    "n = w.item()\nx = n or 3",
    "x = w.item() == 3\nif x: pass",
    "if (n := w.item()): pass",
    "if (n := w.item()) > 3: pass",
    "if 3 > (n := w.item()): pass",
    "x = [m for m in range(3) if w.item()]",
    "x = [m for m in range(3) if m > w.item()]",
    "match w.item():\n    case 0: pass",
    "match 3:\n    case n if w.item(): pass",
    "n = w.item()\nx = 0 < n < print()",
    "x = any(print() or m > 3 for m in w.tolist())",
    "n = w.item()\nx = n in [0] and print()",
    "def low(n): return n < 3\nif low(w.item()): pass",
    "def low(n):\n    if n < 3: pass\nlow(w.item())",
    "n = w.item()\ntry: x = 3 / (n + 1)\nexcept ZeroDivisionError: pass",
    "n = w.item()\ntry: x = 3 % (n + 1)\nexcept ZeroDivisionError: pass",
    "n = w.item()\ntry: x = '%c' % n\nexcept OverflowError: pass",
    "n = w.item()\ntry: x = f'{n:c}'\nexcept OverflowError: pass",
    "n = w.item()\ntry: x = '{:c}'.format(n)\nexcept OverflowError: pass",
    "n = w.item()\ntry: x = f'{3:{n}}'\nexcept ValueError: pass",
    "n = w.item()\nx = 2 ** n",
    "n = w.item()\nx = 1 << n",
    "try: raise ValueError(w.item())\nexcept ValueError as e: x = range(e.args[0])",
    # Sizes and indices.
    "x = range(w.item())",
    "n = w.item()\nfor i in range(n): pass",
    "n = w.item()\nn = min(n, 5)\nx = range(n)",
    "x = [i for i in range(w.item())]",
    "n = w.item()\nx = range(n)\nprint(len(x))",
    "n = w.item()\nx = 'a' * n\nprint(len(x))",
    "n = w.item()\nx = str(n)\nprint(len(x))",
    "x = len({w.item(), 3})",
    "x = [3, 4][w.item()]",
    "n = w.item()\nx = [3, 4][:n]",
    "n = w.item()\nx = [3, 4][n:]\nprint(x)",
    "x = [3, 4]\nprint(x[w.item()])",
    "x = {}\nx[w.item()] = 3",
    "x = {w.item(): 1}",
    "x = {f'{w.item()}': 1}",
    "x = {n: 1 for n in w.tolist()}",
    "x = w.reshape(w.item())",
    "n = w.item()\nx = w.reshape(n)",
    "import numpy as np\nx = np.zeros(w.item())",
    "n = w.item()\nf = lambda: range(n)\nf()",
    "n = w.item()\ndef f(m=n): return range(m)\nf()",
    "n = w.item()\ndef f(m=[n]): return range(m[0])\nf()",
    "n = w.item()\nx = [n for n in range(n)]",
    "n = w.item()\nx = [range(n) for n in [n]]",
    "n = w.item()\ndef f():\n    return range(n)\nf()",
    "n = 0\ndef f():\n    global n\n    n = w.item()\nf()\nx = range(n)",
    "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n = w.item()\n    g()\n"
    "    return range(n)\nf()",
    "def f():\n    n = w.item()\n    def g():\n        def h(): return range(n)\n"
    "        h()\n    g()\nf()",
    "n = w.item()\nclass C:\n    x = range(n)",
    "class C:\n    n = w.item()\nx = range(C.n)",
    "n = w.item()\nprint(n)\nx = range(n)",
    "x = range(n) if 'n' in dir() else 3\nn = w.item()",
    "n = w.item()\nm = n\nk = m + 1\nx = range(k)",
    "n = w.item()\n(m := n + 1)\nx = range(m)",
    "a, *b = w.item(), 3\nx = range(a)",
    "n: int = w.item()\nx = range(n)",
    "for n in w.tolist(): x = range(n)",
    "for i, n in enumerate(w.tolist()): x = range(n)",
    "x = [range(n) for n in w.tolist()]",
    "h = {'n': w.item()}\nx = range(h['n'])",
    "h = {}\nh['n'] = w.item()\nfor k, v in h.items(): x = range(v)",
    "h = {}\nh['n'] = w.item()\nx = range(max(h.values()))",
    "h = {}\nh.update(n=w.item())\nx = range(h['n'])",
    "t = [w.item(), 3]\nt.reverse()\nx = range(t[1])",
    "t = [3, w.item()]\nt.pop(0)\nx = range(t[0])",
    "t = [3, w.item()]\ndel t[0]\nx = range(t[0])",
    "t = (w.item(), 3)[::-1]\nx = range(t[1])",
    "ns = []\nns.append(w.item())\nx = range(ns[0])",
    "ns = []\nms = ns\nns.append(w.item())\nx = range(ms[0])",
    "ms = []\nns = ms\nns.append(w.item())\nx = range(ms[0])",
    "ms = []\nh = {'n': ms}\nh['n'].append(w.item())\nx = range(ms[0])",
    "ms = []\nh = {'n': ms}\nh['n'] += [w.item()]\nx = range(ms[0])",
    "ms = []\nns = ms\nns += [w.item()]\nx = range(ms[0])",
    "rows = [[]]\nfor row in rows: row.append(w.item())\nx = range(rows[0][0])",
    "def f(ns): ns.append(w.item())\nms = []\nf(ms)\nx = range(ms[0])",
    "def f(ns=[]):\n    ns.append(w.item())\n    return ns\nx = range(f()[0])",
    "def f(ns): return range(ns[0])\nms = []\nms.append(w.item())\nf(ms)",
    "ns = [0]\nns[0] = w.item()\nx = range(ns[0])",
    "ns = [0]\nns[0] += w.item()\nx = range(ns[0])",
    "import numpy as np\nc = np.zeros(2, int)\nd = c\nc[0] += w.item()\nx = range(d[0])",
    "import numpy as np\nc = np.zeros(1, int)\nc += w.item()\nx = range(c[0])",
    "import numpy as np\nd = np.zeros(1, int)\nc = d\nc += w.item()\nx = range(d[0])",
    "ns = sorted([w.item(), 3])\nx = range(ns[0])",
    "n = max(w.item(), 3)\nx = range(n)",
    "n = sum([w.item()])\nx = range(n)",
    "n = int(float(w.item()))\nx = range(n)",
    "x = list(map(range, w.tolist()))",
    "p = w.cpu()\nx = p[p > 3]",
    "p = w.cpu()\nx = p.nonzero()",
    "p = w.cpu()\nif p.sum() > 3: pass",
    "p = w.cpu()\nif (p == 3).all(): pass",
    "p = w.cpu()\nx = range(p.max().item())",
    "try: x = w.cpu().to('cuda')\nexcept RuntimeError: pass",
    "try: x = w.cpu().cuda()\nexcept RuntimeError: pass",
    # Functions and methods.
    "unknown(w.item())",
    "f = [print, range][1]\nf(w.item())",
    "def count(x): return x.item()\nx = range(count(w))",
    "def count(x): return x.item()\nf = count\nx = range(f(w))",
    "def count(x): return x.item()\nx = list(map(range, map(count, [w])))",
    "def both(x): return 3, x.item()\nx = range(both(w)[1])",
    "def both(x): return 3, x.item()\nm, n = both(w)\nx = range(n)",
    "def f(x): return {'n': x.item()}\nx = range(f(w)['n'])",
    "def f(*args): return range(args[0])\nf(w.item())",
    "def f(**args): return range(args['n'])\nf(n=w.item())",
    "def f(n): return range(n)\nf(*[w.item()])",
    "def f(n): return range(n)\nf(**{'n': w.item()})",
    "def f(n): return range(n)\nf(n=w.item())",
    "def f(a, n): return range(n)\nf(3, w.item())",
    "def size(f):\n    def g(): return range(f())\n    return g\n@size\n"
    "def count(): return w.item()\ncount()",
    "def size(f):\n    def g(n): return range(n)\n    return g\n@size\n"
    "def show(n): print(n)\nshow(w.item())",
    "def count():\n    yield w.item()\nfor n in count(): x = range(n)",
    "def count():\n    yield w.item()\nprint(list(count()))",
    "async def count(): return w.item()\ntry: count().send(None)\n"
    "except StopIteration as e: x = range(e.value)",
    "f = lambda: w.item()\nx = range(f())",
    "f = lambda n: range(n)\nf(w.item())",
    "def show(n): print(n)\nshow = range\nshow(w.item())",
    "print = range\nprint(w.item())",
    "def print(n): return range(n)\nprint(w.item())",
    "def f(print): print(w.item())\nf(range)",
    "def max(n): return range(n)\nx = max(w.item())",
    f"{METER}m = Meter()\nm.put(w.item())\nx = range(m.sum)",
    f"{METER}m = Meter()\nm.put(1, w.item())\nif m.average() > 3: pass",
    f"{METER}m = Meter()\nm.put(w.item())\nx = range(int(m.average()))",
    f"{METER}m = Meter()\nm.put(w.item())\nx = range(getattr(m, 'sum'))",
    f"{METER}m = Meter()\nm.put(w.item())\nx = range(vars(m)['sum'])",
    f"{METER}m = Meter()\nm.put(w.item())\nx = range(m.__dict__['sum'])",
    f"{METER}m = Meter()\nf = m.put\nf(w.item())\nx = range(m.sum)",
    f"{METER}class Other(Meter):\n    def put(self, value): return range(value)\n"
    "m = Other()\nm.put(w.item())",
    "class C: pass\nc = C()\nc.n = w.item()\nx = range(c.n)",
    "class C:\n    def __init__(self): self.n = w.item()\nc = C()\nx = range(c.n)",
    "class C:\n    def __init__(self): self.n = w.item()\n"
    "    def f(self): return range(self.n)\nC().f()",
    "class C:\n    @property\n    def n(self): return w.item()\nx = range(C().n)",
    f"{PROPERTY}x = range(r.rate)",
    f"{PROPERTY}def f(r): return range(r.rate)\nf(r)",
    f"{PROPERTY}x = range(getattr(r, 'rate'))",
    f"{PROPERTY}x = range(Rate.rate.fget(r))",
    f"{PROPERTY}x = range([r][0].rate)",
    PROPERTY.replace("r = ", "    other = rate\nr = ") + "x = range(r.other)",
    PROPERTY.replace("r = ", "    @rate.setter\n    def rate(self, n): range(n)\nr = ")
    + "r.rate = 3",
    PROPERTY.replace("r = ", "    size = property(rate.fget)\nr = ") + "x = range(r.size)",
    PROPERTY.replace("Rate()", "More()").replace("r = ", "class More(Rate): pass\nr = ")
    + "x = range(r.rate)",
    "class C:\n    @property\n    def n(self): return self._n\n    @n.setter\n"
    "    def n(self, n): x = range(n)\n    def f(self): self.n = w.item()\nC().f()",
    "class C:\n    def __add__(self, n): return range(n)\n    __radd__ = __add__\n"
    "x = w.item() + C()",
    "class C:\n    def __rtruediv__(self, n): return range(n)\nx = w.item() / C()",
    "class C:\n    def __eq__(self, n): return range(n)\nx = w.item() == C()",
    "class C:\n    def __setitem__(self, i, n): x = range(n)\nc = C()\nc[0] = w.item()",
    "class C:\n    def append(self, n): x = range(n)\nc = C()\nc.append(w.item())",
    "class C:\n    def set_postfix(self, n): x = range(n)\nc = C()\nc.set_postfix(n=w.item())",
    "class C:\n    def __len__(self): return w.item()\nx = range(len(C()))",
    "class C:\n    def __index__(self): return w.item()\nx = range(C())",
    "class C:\n    def __iter__(self): return iter(w.tolist())\nfor n in C(): x = range(n)",
    "class C:\n    def count(self): return w.item()\nc = C()\nx = range(c.count())",
    "class C:\n    def count(self): return w.item()\nx = range(getattr(C(), 'count')())",
    "from dataclasses import dataclass\n@dataclass\nclass C:\n    n: int\nc = C(w.item())\n"
    "x = range(c.n)",
    "from types import SimpleNamespace\nc = SimpleNamespace(n=w.item())\nx = range(c.n)",
    "import functools\nf = functools.partial(range, w.item())\nf()",
    "import contextlib\nwith contextlib.nullcontext(w.item()) as n: x = range(n)",
    "class C:\n    def __init__(self): self.n = w.item()\nunknown(C())",
    "class C:\n    def __init__(self): self.n = w.item()\nc = [C()]\nunknown(c[0])",
    "class C:\n    def __init__(self):\n        self.n = w.item()\n        unknown(self)\nC()",
    "class C:\n    def count(self): return w.item()\nc = C()\nprint(c.count())\nunknown(c)",
    "class C:\n    def put(self, n): self.n = n\nf = C.put\n"
    "c = C()\nf(c, w.item())\nx = range(c.n)",
    "class C:\n    class D:\n        def __init__(self): self.n = w.item()\nc = C.D()\n"
    "x = range(c.n)",
    "class C:\n    def put(self, n): self.n = n\ndef f():\n    c = C()\n    c.put(w.item())\n"
    "    return c\nx = range(f().n)",
    "class C:\n    def f(self, m=w.item()): return range(m)\nC().f()",
    "def f(x: range(w.item())): pass",
    "x: range(w.item()) = 3",
    "def at(n): return lambda f: range(n)\n@at(w.item())\ndef f(): pass",
    "def made(n): return type('C', (), {'n': range(n)})\nclass C(made(w.item())): pass",
    "n = w.item()\nfs = [lambda: range(n)]\nfs[0]()",
    "n = w.item()\nf = lambda m=n: range(m)\nf()",
    "n = w.item()\nx = sorted([3, 4], key=lambda m: m * n)[0]\ny = range(x)",
    "x = max([3, 4], key=lambda m: m * w.item())",
    "n = w.item()\nx = max((n, print), (3, len))[1]\nx('a')",
    "n = w.item()\nx = min([(n, [3]), (3, [3, 4])])[1]\ny = range(len(x))",
    "x = [w.item()] * 3\ny = range(x[1])",
    "x = [3]\nx += [w.item()]\ny = range(x[1])",
    "x = {**{'n': w.item()}}\ny = range(x['n'])",
    "x = dict([(w.item(), 3)])\ny = range(list(x)[0])",
    "x = range(int(f'{w.item()}'))",
    "x = range(len(f'{w.item()}'))",
    "x = f'{w.item()}'[0]\nif x == '3': pass",
    "n = w.item()\nx = '{:{}}'.format(3, n)\ny = range(len(x))",
    "n = abs(w.item())\nx = '%*d' % (n, 3)\ny = range(len(x))",
    "print(*range(w.item()))",
    "n = w.item()\nx = n.bit_length()",
    "class C: pass\nc = C()\nsetattr(c, 'n', w.item())\nx = range(c.n)",
    "print('a', end=w.item() or '')",
    "n = w.item()\nx = [len, print][n]('a')",
    "for x in ([3], [w.item()]):\n    for n in x: y = range(n)",
    "*a, n = 3, w.item()\nx = range(n)",
    "(a, b), n = (3, w.item()), 4\nx = range(b)",
    "n = 3\nfor n in [w.item()]: pass\nx = range(n)",
    "import contextlib\nwith contextlib.suppress(ValueError): x = 3 // (w.item() + 1)",
    "from math import *\nprint(w.item())",
    "import logging\nlogging.log(w.item() + 30, 'n')",
    "import pickle\nx = pickle.loads(pickle.dumps(w.item()))\ny = range(x)",
    "import copy\nx = range(copy.deepcopy([w.item()])[0])",
    "import torch\nx = torch.zeros(w.item())",
    "import torch\nx = torch.tensor(w.tolist())\ny = range(x[0])",
    "import torch\nx = torch.zeros(1, dtype=torch.long)\nx += w.item()\ny = torch.zeros(x[0])",
    "import torch\nx = torch.zeros(3)\nx[1] = w.item()\ny = x[x > 3]",
    "import torch\nx = torch.zeros(3)\ny = x.view(-1)\nx[1] = w.item()\nz = y.nonzero()",
    "import torch\nx = torch.zeros(3)\nx = x + w.item()\ny = torch.relu(x)",
    "import numpy as np\nx = np.zeros(1, [('a', int)])\nx['a'] = w.item()\n"
    "for n in x['a']: y = range(n)",
    "x = w.cpu().numpy()\ny = x.sum(0, out=x[:1].reshape(()))\nz = x.nonzero()",
    "x = w.cpu()\nx[x > 3] = 4",
    "x = w.cpu().half().item()\ntry: int(x * 1e30)\nexcept OverflowError: pass",
    "a = b = []\na.append(w.item())\nx = range(b[0])",
    "print(a := [], b := a)\na.append(w.item())\nx = range(b[0])",
    "f = list\nc = [f(a := [])]\na.append(w.item())\nx = range(c[0][0] if c[0] else 3)",
    "import numpy as np\na = b = np.zeros(1, int)\na += w.item()\nx = range(b[0])",
    "class C:\n    def __init__(self): self.a = self.b = []\n"
    "    def put(self): self.a.append(w.item())\nc = C()\nc.put()\nx = range(c.b[0])",
    "class C:\n    def __init__(self): self.__n = w.item()\nc = C()\nx = range(c._C__n)",
    "class C:\n    n = property(lambda self: 3, lambda self, n: range(n))\n"
    "    def __init__(self): self.n = w.item()\nC()",
    "class C:\n    def __getattr__(self, name): return lambda n: range(n)\n"
    "c = C()\nc.set_postfix(n=w.item())",
    "class C:\n    set_postfix, n = range, 3\nc = C()\nc.set_postfix(w.item())",
    "class L:\n    def log(self, n): return range(n)\nx = L()\nx.log(w.item())",
    "a = [[]]\nb = a[0]\na[0].append(w.item())\nx = range(b[0])",
    "a = [[]] * 2\na[0].append(w.item())\nx = range(a[1][0])",
    "a = []\nb = [a, a]\nb[0].append(w.item())\nx = range(a[0])",
    "a = []\nb = {'a': a}\na.append(w.item())\nx = range(b['a'][0])",
    "a = [3]\na[:] = [w.item()]\nx = range(a[0])",
    "a, b = 3, w.item()\na, b = b, a\nx = range(a)",
    "x = [3, 4]\nx.insert(w.item(), 5)\ny = range(x[0])",
    "x = [3, 4]\nx.pop(w.item())\ny = range(x[0])",
    "x = {}\nx.setdefault(w.item(), 3)\nfor n in x: y = range(n)",
    "x = list(enumerate([3], w.item()))\ny = range(x[0][0])",
    "x = sum([3], w.item())\ny = range(x)",
    "x = round(3.14159, w.item())\nif x > 3: pass",
    "class C:\n    def put(self, n): return range(n)\nclass D(C):\n"
    "    def go(self): super().put(w.item())\nD().go()",
    "class C:\n    @classmethod\n    def put(cls, n): return range(n)\nC.put(w.item())",
    "class C:\n    n = 0\n    def put(self): C.n += w.item()\nC().put()\nx = range(C.n)",
    "class C:\n    print = range\n    x = print(w.item())",
    "if 3 > 2:\n    def show(n): print(n)\nelse:\n    def show(n): pass\n"
    "def show(n): range(n)\nshow(w.item())",
    "import sys\ntry: sys.exit(w.item())\nexcept SystemExit as e: x = range(e.code)",
    "t = ('a', w.item())\nx = 'n'.join(['a', 'b'][:len(t)])\ny = range(t[-1])",
    "n = w.item()\nn *= [3]\nx = len(n)\nif x > 3: pass",
    "n = w.item()\nn **= 3",
    "class C:\n    def __radd__(self, n): return range(n)\nn = w.item()\nn += C()",
    "t = (*[3, 4], w.item())\nx = range(t[2])",
    "n = w.item()\ndef f(n=n): return range(n)\nf()",
    "n = w.item()\nf = lambda n=n: range(n)\nf()",
    "def at(n): return lambda f: range(n)\nn = w.item()\n@at(n)\ndef f(n): pass",
    "d = {}\nx = {}\nx['a'] = d\nx['a']['b'] = w.item()\ny = range(d['b'])",
    "d = {}\nx = []\nx.append(d)\nx[0]['b'] = w.item()\ny = range(d['b'])",
    "d = []\nx = {'a': []}\nx['a'] = d\nx['a'].append(w.item())\ny = range(d[0])",
    "d = []\nx = {}\nx.update(a=d)\nx['a'].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\nx += [d]\nx[1].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\nx.extend([d])\nx[1].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\nx.insert(0, d)\nx[0].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\nx[0], y = d, 3\nx[0].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\nfor x[0] in [d]: x[0].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\nx[0] = y = []\nx[0].append(w.item())\ny = range(y[0])",
    "d = []\ndef put(x): x[0] = d\nx = [[]]\nput(x)\nx[0].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[]]\ny = x\ny[0] = d\nx[0].append(w.item())\ny = range(d[0])",
    "d = []\nx = [[[]]]\nx[0][0] = d\nx[0][0].append(w.item())\ny = range(d[0])",
    "d = {'a': {}}\nd['a']['b'] = []\nx = d['a']\nx['b'] = y = []\n"
    "d['a']['b'].append(w.item())\nz = range(y[0])",
    "import torch\nd = torch.zeros(1)\nx = {}\nx['a'] = d\nx['a'] += w.item()\n"
    "y = torch.zeros(int(d))",
    "class C:\n    def __init__(self, d):\n        self.x = {}\n        self.x['a'] = d\n"
    "    def put(self): self.x['a'].append(w.item())\nd = []\nC(d).put()\ny = range(d[0])",
    "d = [3]\nx = {'a': {'b': [3]}}\nx['a']['b'] = d\nx['a']['b'] += [w.item()]\ny = range(d[1])",
    "x = [[3]]\ny = x.copy()\ny[0] = d = []\nx[0].append(w.item())\nz = range(y[0][0] if d else 3)",
    # Reflection.
    "n = w.item()\nx = range(locals()['n'])",
    "n = w.item()\nx = range(globals()['n'])",
    "n = w.item()\nx = range(vars()['n'])",
    "n = w.item()\nexec('x = range(n)')",
    "n = w.item()\nx = eval('range(n)')",
    "import sys\nn = w.item()\nx = range(sys._getframe().f_globals['n'])",
    "import sys\nn = w.item()\nx = range(getattr(sys.modules.get('__main__'), 'n', 3))",
    "import builtins\nbuiltins.print = range\ntry: print(w.item())\nfinally: builtins.print = p",
    "import sys, io\nclass Tee:\n    def write(self, t): x = range(len(t))\n"
    "    def flush(self): pass\n"
    "old, sys.stdout = sys.stdout, Tee()\ntry: print(w.item())\nfinally: sys.stdout = old",
    "import io, contextlib\no = io.StringIO()\n"
    "with contextlib.redirect_stdout(o): print(w.item())\n"
    "x = range(int(o.getvalue()))",
    "import io, json\nf = io.StringIO()\njson.dump(w.item(), f)\nf.seek(0)\n"
    "x = range(json.load(f))",
    "import logging\nclass H(logging.Handler):\n    def emit(self, r): x = range(r.args[0])\n"
    "logging.getLogger('y').addHandler(H())\nlogging.getLogger('y').error('%d', w.item())",
    # What was printed, logged or written is read again.
    "import contextlib, sys\n"
    "with contextlib.nullcontext(sys.stdout) as sys.stdout: print(w.item())",
    "import sys\nold = sys.stdout\n"
    "for sys.stdout in [open('/dev/null', 'w'), old]: print(w.item())",
    "import io, sys\nsys.stdout, old = io.BytesIO(), sys.stdout\n"
    "try: print(w.item())\nexcept TypeError: pass\nsys.stdout, old = old, sys.stdout",
    "import io, sys\nold = sys.stdout\nset_to = lambda to: setattr(sys, 'stdout', to)\n"
    "set_to(io.TextIOWrapper(io.BytesIO()))\ntry: print(w.item())\nfinally: set_to(old)",
    "import logging, queue\nfrom logging.handlers import QueueHandler\nq = queue.Queue()\n"
    "logger = logging.getLogger('z')\nlogger.addHandler(QueueHandler(q))\n"
    "logger.error('%d', w.item())\nx = range(int(q.get().getMessage()))",
    "import logging\nlogger = logging.getLogger('u')\nh = logging.StreamHandler()\n"
    "h.emit = lambda record: range(record.args[0])\nlogger.addHandler(h)\n"
    "logger.error('%d', w.item())",
    "import logging\nlogger = logging.getLogger('v')\n"
    "logger.filters.append(lambda record: range(record.args[0]))\nlogger.error('%d', w.item())",
    "import os\npath = os.path.join('/dev', 'null')\n"
    "with open(path, 'w') as f: f.write(str(w.item()))\n"
    "for line in open(os.path.join('/dev', 'null')): x = range(int(line))",
    "with open('/dev/null', 'w') as f: f.write(str(w.item()))\n"
    "with open('/dev/null', encoding='utf8') as f: x = [range(int(line)) for line in f]",
    "with open('/dev/null', 'w') as f: f.write(str(w.item()))\n"
    "with open('/dev/null', 'rt') as f, open('/dev/null', 'w') as g: x = [*map(int, f)]",
    "with open('/dev/null', 'w+') as f:\n    f.write(str(w.item()))\n    f.seek(0)\n"
    "    x = [*map(int, f)]",
    "import subprocess\nwith open('/dev/null', 'w') as f: f.write(str(w.item()))\n"
    "x = range(len(subprocess.check_output(['cat', '/dev/null'])))",
    "import os\nwith open('/dev/null', 'w') as f: f.write(str(w.item()))\n"
    "x = range(len(os.popen('cat /dev/null').read()))",
    "import numpy\nwith open('/dev/null', 'w') as f: f.write(str(w.item()))\n"
    "x = numpy.fromfile('/dev/null', sep=' ')",
]


PARTS = f"""\
{METER}
total = 0
def right(x): return x.item()
def keep(x):
    global total
    total = x.item()
def show(n): print(n)
def sized(n): return range(n)
"""
HARMLESS_IN_OTHER_FILES = [
    "from parts import right\nprint(right(w))",
    "import parts\nn = parts.right(w)\nprint(n)",
    "from parts import show\nshow(w.item())",
    "import parts as p\np.show(w.item())",
    "import package.inner\nprint(w.item())",
    "from parts import show\ndef f(n): show(n + 1)\nf(w.item())",
]
HARMFUL_IN_OTHER_FILES = [
    "from parts import right\nx = range(right(w))",
    "from parts import right as f\nx = range(f(w))",
    "from parts import *\nx = range(right(w))",
    "import parts\nx = range(parts.right(w))",
    "import parts\nf = parts.right\nx = range(f(w))",
    "import parts\nx = range(getattr(parts, 'right')(w))",
    "import parts\nparts.keep(w)\nx = range(parts.total)",
    "import parts\nparts.keep(w)",
    "from parts import sized\nsized(w.item())",
    "import parts\nparts.sized(w.item())",
    "import parts\nparts.show = range\nparts.show(w.item())",
    "import parts\nsetattr(parts, 'show', range)\nparts.show(w.item())",
    "import parts\nparts.print = range\nparts.show(w.item())",
    "from parts import right\nprint(right(w))\nimport later",
    "from parts import right\nprint(right(w))\ndef f(): from later import x",
    "import importlib\nfrom parts import right\nprint(right(w))\nimportlib.import_module('later')",
]


class Number:
    """A stand-in for a tensor of one integer on the device."""

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.harmless: list[bool] = []

    def _read(self, frame: object) -> int:
        self.harmless.append(is_harmless(frame))  # type: ignore[arg-type]
        return self.value

    def item(self) -> int:
        return self._read(sys._getframe(1))

    def tolist(self) -> list[int]:
        return [self._read(sys._getframe(1))]

    def cpu(self) -> torch.Tensor:
        return torch.tensor([self._read(sys._getframe(1))])

    def __int__(self) -> int:
        return self._read(sys._getframe(1))

    def __float__(self) -> float:
        return float(self._read(sys._getframe(1)))

    def __bool__(self) -> bool:
        return bool(self._read(sys._getframe(1)))

    def _text(self) -> str:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        self.harmless.append(is_harmless(frame, as_text=True))  # type: ignore[arg-type]
        return str(self.value)

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return self._text()

    def __format__(self, spec: str) -> str:
        return self._text()

    def reshape(self, size: int) -> Number:
        return self


class Bar:
    def set_postfix(self, *args: object, **kwargs: object) -> None: ...

    set_description = add_scalar = set_postfix

    def add_scalars(self, *args: object) -> None:
        """Makes texts."""
        str(args)


@pytest.fixture(autouse=True)
def no_sources_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sources, "_sources", {})
    monkeypatch.setattr(_harmless, "_known", {})
    monkeypatch.setattr(_program, "_last", [])
    leave_out_what_is_loaded(monkeypatch)


def run(
    program: str,
    folder: Path,
    text: bytes | None = None,
    name: str = "__main__",
    is_file: bool = True,
) -> list[bool]:
    """Whether each read is harmless. `text`: what the file has when the program runs."""
    file = folder / "program.py"
    file.write_bytes(program.encode() if text is None else text)
    number = Number()
    names: dict[str, object] = {
        "w": number,
        "bar": Bar(),
        "p": print,
        "unknown": id,
        "__name__": name,
    }
    if is_file:
        names["__file__"] = str(file)
    exec(compile(program, str(file), "exec", dont_inherit=True), names)
    return number.harmless


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that the program can import."""
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("x = 3\n")
    (tmp_path / "later.py").write_text("import parts\nx = parts.right")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("parts", "later", "package", "package.inner"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # restored
        del sys.modules[name]


@pytest.mark.parametrize("program", [*HARMLESS, *TEXT_IS_HARMLESS, *BRANCH_IS_HARMLESS])
def test_it_is_harmless(program: str, tmp_path: Path) -> None:
    harmless = run(program, tmp_path)
    assert harmless
    assert all(harmless), program


@pytest.mark.parametrize("program", [*HARMFUL, *TEXT_IS_HARMFUL, *BRANCH_IS_HARMFUL])
def test_it_may_decide(program: str, tmp_path: Path) -> None:
    harmless: list[bool] = []
    try:
        harmless = run(program, tmp_path)
    except (AttributeError, TypeError):
        pytest.fail(program)
    except ValueError as error:
        if str(error):  # it is none of the program's own
            pytest.fail(program)
    assert harmless
    assert not any(harmless), program


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("program", HARMLESS_IN_OTHER_FILES)
def test_it_is_harmless_in_another_file(program: str, tmp_path: Path) -> None:
    harmless = run(program, tmp_path)
    assert harmless
    assert all(harmless), program


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("program", HARMFUL_IN_OTHER_FILES)
def test_it_may_decide_in_another_file(program: str, tmp_path: Path) -> None:
    harmless = run(program, tmp_path)
    assert harmless
    assert not any(harmless), program


SHOWN = "n = w.item()\nprint(n)"


@pytest.mark.parametrize("name", ["train", "__mp_main__"])
def test_variables_of_imported_files_may_be_loaded_elsewhere(name: str, tmp_path: Path) -> None:
    assert run(SHOWN, tmp_path) == [True]
    assert run(SHOWN, tmp_path, name=name) == [False]


@pytest.mark.parametrize(
    "text", ["", "n = w.item()\nprint(range(n))", "if (", "#\n" + SHOWN, "n = w.item()\nprint( n)"]
)
def test_a_file_that_is_not_the_program_may_decide(text: str, tmp_path: Path) -> None:
    assert run(SHOWN, tmp_path, text.encode()) == [False]


def test_a_cell_of_a_notebook_may_decide(tmp_path: Path) -> None:
    assert run(SHOWN, tmp_path, is_file=False) == [False]


def test_the_source_of_a_package_may_decide(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    assert run(SHOWN, folder) == [False]


@pytest.mark.parametrize("error", [KeyError, RecursionError, MemoryError])
def test_no_failure_reaches_the_program(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> object:
        raise error

    monkeypatch.setattr(_harmless, "source_of", fail)
    assert run(SHOWN, tmp_path) == [False]


def test_a_search_that_takes_long_ends_unsure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "x = w.item()\n" + "x = x + 1\n" * 50
    assert run(program, tmp_path) == [True]
    monkeypatch.setattr(_harmless, "MAX_PARTS", 20)
    monkeypatch.setattr(_harmless, "_known", {})
    assert run(program, tmp_path) == [False]


def test_a_long_chain_of_sums_is_followed_in_time(tmp_path: Path) -> None:
    sums = "".join(f"x{n} = x{n - 1} + x{n - 1}\n" for n in range(1, 60))
    assert run(f"x0 = 3\n{sums}y = w.item() * x59\nprint(y)", tmp_path) == [True]


UNKNOWN = """\
import torch
weights = torch.randn(2048, 2048, device="cuda")
labels = torch.arange(2048, device="cuda") % 10
def logits(): return (weights @ weights)[:, :10]
mask = logits() > 0
"""
ACCURACY = """\
def evaluate():
    right = total = 0
    for _ in range(2):
        right += (logits().argmax(1) == labels).sum().item()
        total += len(labels)
    return right, right / total
right, accuracy = evaluate()
print(f"{right} {100 * accuracy:.1f} %")
"""
COUNTS = """\
print(int(mask.sum()), bool(mask.any()), mask.sum().item())
print("%d of %d" % (mask.sum(), len(mask)))
print("%d" % mask.sum())
"""
PREDICTIONS = """\
predictions = []
for _ in range(2):
    predictions.append(logits().argmax(1).cpu())
found = torch.cat(predictions)
print(found.shape, (found[:2048] == labels.cpu()).float().mean().item())
"""
TOKENS = """\
text = logits().argmax(1).tolist()
print("generated", text[:8], "...", len(text))
"""
IMAGE = """\
image = logits().clamp(0, 1).mul(255).to(torch.uint8).cpu()
grid = image.view(64, 32, 10).permute(2, 0, 1).reshape(10, -1)
print(tuple(grid.shape), grid.float().mean().item())
"""
METERS = f"""\
{METER}meter = Meter()
for _ in range(2):
    meter.put(mask.sum().item(), len(mask))
print(meter.average())
"""
TEXTS = """\
import logging
for _ in range(20):
    print(mask.sum(), mask.any(), [mask.sum()], f"{mask.sum()} {mask.sum():d} {mask[:2, :2]}")
    print("{} {}".format(mask.sum(), str(mask.sum())), "%s of %d" % (mask.sum(), len(mask)))
    logging.error("%s", mask.sum())
"""
SAVED = """\
import io, pickle
model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.BatchNorm1d(2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(weights).sum().backward()
    optimizer.step()
file = io.BytesIO()
torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "epoch": 3}, file)
file.seek(0)
kept = torch.load(file)
model.load_state_dict(kept["m"])
optimizer.load_state_dict(kept["o"])
print(list(range(kept["epoch"])))
torch.save({"count": mask.sum()}, "/dev/null")
"""
SELECTED = """\
class Kept: pass
kept = Kept()
kept.cost = logits()
cost = logits()[:50, :40]
row, step = cost.argmin() // 40, 3
for _ in range(2):
    cost[row] = float("inf")
    cost[row, 1:-1] += 1
    kept.cost[row, step]
    kept.cost[:, -1 - row % 10] = cost[0, 0]
    print(cost[row].shape)
"""
BEST = f"""\
model = torch.nn.Linear(8, 8).cuda()
{ACCURACY}best, state = 0.0, None
for epoch in range(2):
    right, accuracy = evaluate()
    if accuracy > best:
        best, best_epoch = accuracy, epoch
        state = {{k: v.cpu() for k, v in model.state_dict().items()}}
        torch.save(model.state_dict(), "/dev/null")
        print(f"best {{best}} at {{best_epoch}}")
"""


@pytest.mark.parametrize(
    "program", [ACCURACY, COUNTS, PREDICTIONS, TOKENS, IMAGE, METERS, TEXTS, SAVED, SELECTED, BEST]
)
def test_a_program_that_shows_integers_fits(simulate: Simulate, program: str) -> None:
    done, result = simulate(UNKNOWN + program)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert {read["learned"] for read in result["uncomputed"]} == {"float"}
    for read in result["uncomputed"]:
        why = "follow from choices" if read["drawn"] else "were not computed"
        assert f"numbers that seem to decide nothing {why}" in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        f"{ACCURACY}if accuracy > 0.5: weights.sum()",
        f"{COUNTS}if mask.any(): print(mask.shape)",
        "count = mask.sum().item()\nprint(count)\nx = torch.zeros(count, device='cuda')",
        f"{PREDICTIONS}print(found[found == 3].shape)",
        f"{TOKENS}print(text.index(0))",
        f"{IMAGE}print(grid.cuda().shape)",
        f"{METERS}print(list(range(int(meter.average()))))",
        f"{TEXTS}n = int(f'{{mask.sum()}}')\nprint(list(range(n)))",
        f"{BEST}print(list(range(best_epoch)))",
        f"{SELECTED}parts = [cost, cost[0]]\nparts[row % 2]",
        f"{SELECTED}cost[:row]",
        f"{SELECTED}cost[1:5, row:]",
        f"{SELECTED}part = slice(0, row)\ncost[part]",
        f"{SELECTED}cost[1, slice(row)]",
        f"{SELECTED}torch.zeros(3, 4)[(row, slice(row))]",
        f"{BEST.replace('v.cpu()', 'v.clone()')}",
    ],
)
def test_a_program_that_uses_one_fits_as_far_as_known(simulate: Simulate, program: str) -> None:
    done, result = simulate(UNKNOWN + program)
    assert (done.returncode, result["verdict"]) == (13, "fits as far as known"), done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import pickle\nn = pickle.loads(pickle.dumps({'n': mask.sum()}))['n']",
        "import io\nf = io.BytesIO()\ntorch.save(mask.sum(), f)\nf.seek(0)\nn = torch.load(f)",
        "import os\ntorch.save([mask.sum()], 'a.pt')\nos.replace('a.pt', 'b.pt')\n"
        "n = torch.load('b.pt', map_location='cpu')[0]",
        "import pathlib\npath = pathlib.Path('a.pt')\ntorch.save(mask.sum(), path)\n"
        "with path.open('rb') as f: n = torch.load(f)",
        "class Kept: pass\nkept = Kept()\nkept.n = logits().argmax(1)\ntorch.save(kept, 'a.pt')\n"
        "n = torch.load('a.pt', weights_only=False).n[0]",
    ],
)
def test_integers_that_are_saved_and_loaded_may_decide(
    simulate: Simulate, program: str, tmp_path: Path
) -> None:
    folder = f"import os\nos.chdir({str(tmp_path)!r})\n"
    done, result = simulate(f"{folder}{UNKNOWN}{program}\nprint(torch.zeros(int(n)).shape)")
    assert (done.returncode, result["verdict"]) == (13, "fits as far as known"), done.stderr
    assert "it reached what this line loads\n" in done.stderr


def test_a_file_that_is_older_than_what_was_saved_decides_nothing(
    simulate: Simulate, tmp_path: Path
) -> None:
    file = tmp_path / "old.pt"
    torch.save(torch.tensor(3), file)
    os.utime(file, (1e9, 1e9))
    program = f"torch.save(mask.sum(), '/dev/null')\nprint(range(torch.load({str(file)!r})))"
    done, result = simulate(UNKNOWN + program)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr


def test_a_program_of_several_files(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text("def right(x, y): return (x == y).sum().item()\n")
    program = (
        f"{UNKNOWN}import counting\nn = counting.right(logits().argmax(1), labels)\nprint(n)\n"
    )
    done, result = simulate(program)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    done, result = simulate(f"{program}print(len(range(n)))")
    assert (done.returncode, result["verdict"]) == (13, "fits as far as known"), done.stderr
