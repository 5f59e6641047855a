"""Where the source of a program takes a floating-point number that it reads."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

import pytest
import torch

from ferro_alloc.sim import _float_uses, _follow, _held, _sources, _variables
from ferro_alloc.sim._float_uses import reached
from tests.python.sim.conftest import Simulate, leave_out_what_is_loaded

TRACKER = """\
class Tracker:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def put(self, loss):
        self.total += loss
        self.count += 1
    @property
    def last(self):
        return w.item()
    @property
    def mean(self):
        return self.total / self.count
    def value(self):
        return self.total
"""
STOPPER = """\
class Stopper:
    def __init__(self):
        self.best = 9.0
        self.steps = 0
    def __call__(self, loss):
        self.steps += 1
        self.best = min(self.best, loss)
        return self.step(loss)
    def step(self, loss):
        if loss < self.best:
            self.best = loss
"""
STATS = """\
from dataclasses import dataclass
@dataclass
class Stats:
    step: int
    loss: float = 0.0
    @property
    def is_good(self):
        return self.loss < 3
"""
METER = """\
class Meter:
    def __init__(self):
        self.value = self.sum = self.average = self.count = 0
    def update(self, value, count=1):
        self.value = value
        self.sum += value * count
        self.count += count
        self.average = self.sum / self.count
    def __str__(self):
        return f"{self.value} ({self.average})"
"""
DECIDES = [
    "if w.item() > 3: pass",
    "while w.item() > 3: break",
    "assert w.item() < 9",
    "x = 1 if w.item() > 0 else 2\nif x > 1: pass",
    "n = 8 if w.item() > 3 else 16\nx = w.reshape(n)",
    "n = 8 if w.item() > 3 else 16\nprint([0] * 20, list(range(n)))",
    "x = [n for n in range(3) if n < w.item()]",
    "x = int(w.item())",
    "x = round(w.item())",
    "x = math.ceil(w)",
    "x = range(int(w.item()))",
    "x = [0] * 9\nprint(x[round(w.item()):])",
    "size = w.item() * 2 + 1\nn = math.floor(size)",
    "loss = float(w)\nbest = min(9.0, loss)\nif loss < best: pass",
    "(loss := w.item())\nis_best = loss > 3\nif is_best: pass",
    "a, (b, c) = 1, (w.item(), 2)\nif b: pass",
    "losses = []\nlosses.append(w.item())\nif sum(losses) / len(losses) > 1: pass",
    "losses = [w.item() for _ in range(2)]\nfor each in losses:\n    if each > 1: break",
    "if any(each > 1 for each in w.tolist()): pass",
    "logs = {'loss': w.item()}\nif logs['loss'] > 3: pass",
    "logs = {}\nlogs['loss'] = w.item()\nlogs['loss'] += 1\nif logs['loss'] > 3: pass",
    "größe, x = 'ä', w.item()\nif x > 3: pass",
    "match w.item():\n    case 0.0: pass",
    "match 3:\n    case n if n > w.item(): pass",
    "def mean(x):\n    return x.item() / 2\nif mean(w) > 3: pass",
    "def both(x):\n    return x.item(), 3\nloss, n = both(w)\nif loss > 3: pass",
    "if (lambda x: x.item())(w) > 3: pass",
    "class Best:\n    def put(self): self.best = w.item()\n"
    "    def is_bad(self): return 1 if self.best > 3 else 0\nbest = Best()\nbest.put()\n"
    "if best.is_bad(): pass",
    "loss = (\n    w\n    .item()\n)\nif loss > 3: pass",
    "import contextlib\n@contextlib.contextmanager\ndef any(): yield\n@any()\n"
    "def read(): return w.item()\nif read() > 3: pass",
    "x = w.cpu().long().item()",
    "x = w.cpu().argmax().tolist()",
    "logs = {}\nlogs['loss'] = w.item()\nif max(logs.values()) > 3: pass",
    "def step():\n    logs = {}\n    logs['loss'] = w.item()\n    return logs\n"
    "if step()['loss'] > 3: pass",
    "losses = [0.0] * 3\nfor i in range(3): losses[i] = w.item()\nif losses[-1] > 3: pass",
    "losses = [0.0] * 3\nlosses[0] = w.item()\nif min(losses) > 3: pass",
    "h = {'loss': []}\nh['loss'].append(w.item())\nfor key in h:\n    if h[key][-1] > 3: pass",
    "logs = {}\nlogs.update(loss=w.item())\nif logs['loss'] > 3: pass",
    "logs = {}\nlogs.update({'loss': w.item()})\nif logs['loss'] > 3: pass",
    "logs = {}\nlogs.setdefault('loss', []).append(w.item())\nif logs['loss'][0] > 3: pass",
    "for name, loss in {'loss': w.item()}.items():\n    if loss > 3: pass",
    "for item in {'loss': w.item()}.items():\n    if item[1] > 3: pass",
    "logs = {'loss': w.item()}\nfor name in sorted(logs):\n    if logs[name] > 3: pass",
    "for i, loss in enumerate([w.item()]):\n    if loss > 3: pass",
    "for n, loss in zip([1], [w.item()]):\n    if loss > 3: pass",
    "for n, (i, loss) in zip([1], enumerate([w.item()])):\n    if loss > 3: pass",
    "for i, (n, loss) in enumerate({'loss': w.item()}.items()):\n    if loss > 3: pass",
    "if 3.0 in [1.0, 3.0] and w.item() in [3.0]: pass",
    "for loss in [1.0]: pass\nfor loss in [w.item()]:\n    for n in [1]:\n"
    "        if loss > n: pass",
    "loss = w.item()\nfor n in [1]:\n    if loss > n: pass",
    "import bisect\nplace = bisect.bisect([1.0], w.item())\nprint([3, 4][place])",
    "logs = {'loss': w.item()} or {}\nif logs['loss'] > 3: pass",
    "logs = {}\nlogs.setdefault('loss', w.item())\nif logs['loss'] > 3: pass",
    "losses = [1.0]\nlosses += [w.item()]\nif losses[1] > 3: pass",
    "losses = [1.0] + [w.item()]\nif losses[1] > 3: pass",
    "losses = [*[1.0, 2.0], w.item()]\nif losses[2] > 3: pass",
    "losses = (1.0, w.item())[1:]\nif losses[0] > 3: pass",
    "best = 9.0\ndef step():\n    global best\n    best = w.item()\nstep()\nif best > 3: pass",
    "def fit():\n    best = 9.0\n    def step():\n        nonlocal best\n"
    "        best = w.item()\n    step()\n    if best > 3: pass\nfit()",
    "logs = {'loss': w.item()}\nif logs.get('loss') > 3: pass",
    "n = (w.cpu() > 3).item()",
    "class Run:\n    def __init__(self): self.logs = {'loss': 0}\n    def put(self, logs):\n"
    "        self.logs.update(logs)\n        if self.logs['loss'] < 3: pass\n"
    "Run().put({'loss': w.item()})",
    "class Stop:\n    def on_end(self, run):\n        if run.loss < 3: pass\nclass Run:\n"
    "    def __init__(self): self.callbacks = [Stop()]\n    def end(self, loss):\n"
    "        self.loss = loss\n        for callback in self.callbacks: callback.on_end(self)\n"
    "Run().end(w.item())",
    # Properties.
    f"{TRACKER}if Tracker().last > 3: pass",
    f"{TRACKER}loss = Tracker().last\nif loss > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif t.mean > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif t.value() > 3: pass",
    f"{TRACKER}trackers = {{'a': Tracker()}}\ntrackers['a'].put(w.item())\n"
    "if trackers['a'].mean > 3: pass",
    # Functions that are passed, and orders.
    "losses = list(map(float, [w]))\nif losses[0] > 3: pass",
    "for loss in map(float, [w]):\n    if loss > 3: pass",
    "if max(map(float, [w])) > 3: pass",
    "losses = [*map(float, [w])]\nif losses[0] > 3: pass",
    "loss, = map(float, [w])\nif loss > 3: pass",
    "if any(loss > 3 for loss in map(float, [w])): pass",
    "n = list(map(int, [w.item()]))",
    "def read(x): return x.item()\nif list(map(read, [w]))[0] > 3: pass",
    "def read(x): return x.item()\nfor loss in map(read, [w]):\n    if loss > 3: pass",
    "best = min([w, w], key=lambda x: x.item())\nif best: pass",
    "best = min([w, w], key=float)\nif best.shape[0] > 1: pass",
    "losses = [w.item(), 2.0]\nk = max(range(2), key=lambda i: losses[i])\nprint([3, 4][k])",
    "losses = [w.item(), 2.0]\ndef of(i): return losses[i]\n"
    "for k in sorted(range(2), key=of): print([3, 4][k])",
    "logs = {'a': w.item(), 'b': 2.0}\nif max(logs, key=logs.get) == w: pass",
    "order = [0, 1]\norder.sort(key=lambda i: w.item())\nprint([3, 4][order[0]])",
    "def of(i): return w.item()\norder = [0, 1]\norder.sort(key=of)\nprint([3, 4][order[0]])",
    "xs = [w, w]\nxs.sort(key=float)\nprint(xs[0].shape[0] * [0])\nif len(xs[0].shape): pass",
    "pairs = [(w.item(), 0), (2.0, 1)]\nloss, k = min(pairs)\nprint([3, 4][k])",
    "size = [64, 128][0]\nsize = max([64, 128], key=lambda n: w.item() * n)\nx = w.reshape(size)",
    "kept = filter(lambda x: x.item() > 3, [w])\nprint(len(list(kept)))",
    # Generators.
    "def read():\n    yield w.item()\nfor loss in read():\n    if loss > 3: pass",
    "def read():\n    yield w.item()\nloss = next(read())\nif loss > 3: pass",
    "def read():\n    yield w.item()\nif max(read()) > 3: pass",
    "def read():\n    yield w.item()\ndef both():\n    yield 1\n    yield from read()\n"
    "if any(loss > 3 for loss in both()): pass",
    "def read():\n    yield from (x.item() for x in [w])\nif sum(read()) > 3: pass",
    "def read():\n    yield 3, w.item()\nfor i, loss in read():\n    if loss > 3: pass",
    "class Data:\n    def losses(self):\n        yield w.item()\nd = Data()\n"
    "for loss in d.losses():\n    if loss > 3: pass",
    "if all(x.item() > 3 for x in [w]): pass",
    "if sum(x.item() for x in [w]) > 3: pass",
    "if max((x.item() for x in [w]), default=0) > 3: pass",
    "def read(): return [x.item() for x in [w]]\nif read()[0] > 3: pass",
    "def read(): return sum(x.item() for x in [w])\nif read() > 3: pass",
    "def read(): return (x.item() for x in [w])\nfor loss in read():\n    if loss > 3: pass",
    "import contextlib\n@contextlib.contextmanager\ndef reads():\n    yield w.item()\n"
    "with reads() as loss:\n    if loss > 3: pass",
    "import asyncio\nasync def read(): return w.item()\nasync def main():\n"
    "    losses = await asyncio.gather(read())\n    if losses[0] > 3: pass\nasyncio.run(main())",
    "class Losses:\n    def __iter__(self): return self\n    def __next__(self): return w.item()\n"
    "for loss in Losses():\n    if loss > 3: pass\n    break",
    # Functions and methods of the program.
    "class Logs:\n    def __getitem__(self, key): return w.item()\nif Logs()['loss'] > 3: pass",
    "class Run:\n    def __lt__(self, other): return w.item() < 3\nif Run() < Run(): pass",
    "def plain(f):\n    def call(*args): return f(*args)\n    return call\n@plain\n"
    "def read(): return w.item()\nif read() > 3: pass",
    "import torch\n@torch.no_grad()\ndef read(): return w.item()\nif read() > 3: pass",
    "class Stopper:\n    @staticmethod\n    def stop(loss):\n        if loss > 3: pass\n"
    "Stopper.stop(w.item())",
    "class Stopper:\n    @classmethod\n    def stop(cls, loss):\n        if loss > 3: pass\n"
    "Stopper().stop(w.item())",
    "class Stopper:\n    def stop(self, loss):\n        if loss > 3: pass\n"
    "Stopper.stop(Stopper(), w.item())",
    "def stop(loss):\n    if loss < 3: return True\nstop(w.item())",
    "def stop(step, *, loss=0):\n    if loss < 3: return True\nstop(1, loss=w.item())",
    "def stop(*losses):\n    if losses[0] < 3: return True\nstop(w.item())",
    "def stop(step, loss):\n    if loss < 3: return True\nstop(*[1, w.item()])",
    "def stop(loss, **logs):\n    if logs['a'] < 3: return True\nstop(1, a=w.item())",
    "def stop(loss=0, step=0):\n    if loss < 3: return True\nstop(**{'loss': w.item()})",
    "def stop(loss): return loss < 3\ndef end(loss):\n    if stop(loss): pass\nend(w.item())",
    "def stop(logs):\n    if logs['loss'] < 3: return True\nstop({'loss': w.item(), 'step': 3})",
    "def put(logs): logs['loss'] = w.item()\nlogs = {}\nput(logs)\nif logs['loss'] > 3: pass",
    "def put(logs, loss): logs.append(loss)\nlogs = []\nput(logs, w.item())\nif logs[0] > 3: pass",
    "def half(x): return x / 2\nif half(w.item()) > 3: pass",
    "import torch\nif torch.tensor([3.0, w.item()]).mean() > 2: pass",
    "best = 0\ndef put(loss):\n    global best\n    best = loss\ndef get(): return best\n"
    "put(w.item())\nif get() > 3: pass",
    "def again(loss, n): return again(loss / 2, n - 1) if n else loss\n"
    "if again(w.item(), 3) > 3: pass",
    "def apply(f): return f()\nif apply(lambda: w.item()) > 3: pass",
    f"{STOPPER}stopper = Stopper()\nstopper(w.item())",
    f"{STOPPER}stopper = Stopper()\nstopper.step(w.item())",
    f"{STOPPER}Stopper().step(loss=w.item())",
    f"{STOPPER}def fit(stopper): stopper.step(w.item())\nfit(Stopper())",
    f"{STOPPER}class Trainer:\n    def __init__(self): self.stopper = Stopper()\n"
    "    def fit(self): self.stopper(w.item())\nTrainer().fit()",
    f"{STOPPER}class Patient(Stopper): pass\nPatient().step(w.item())",
    "class Step:\n    def __init__(self, loss): self.loss = loss\n"
    "    def is_good(self): return self.loss < 3\nif Step(w.item()).is_good(): pass",
    "class Step:\n    def __init__(self, loss): self.loss = loss\n"
    "s = Step(w.item())\nif s.loss > 3: pass",
    "class Base:\n    def __init__(self, loss): self.loss = loss\nclass Step(Base):\n"
    "    def __init__(self, loss): super().__init__(loss)\nif Step(w.item()).loss > 3: pass",
    "class Loss(Exception):\n    pass\nclass Trainer:\n    def fit(self):\n"
    "        self.put()\n        if self.done(): pass\n    def put(self): self.loss = w.item()\n"
    "    def done(self): return self.loss < 3\nTrainer().fit()",
    f"{STATS}stats = Stats(1, w.item())\nif stats.loss > 3: pass",
    f"{STATS}stats = Stats(step=1, loss=w.item())\nif stats.is_good: pass",
    f"{STATS}def fit(): return Stats(1, w.item())\nif fit().is_good: pass",
    f"{STATS}all_stats = []\nall_stats.append(Stats(1, w.item()))\n"
    "for each in all_stats:\n    if each.loss > 3: pass",
    f"{STATS}best = min([Stats(1, w.item())], key=lambda each: each.loss)\nif best.step > 3: pass",
    f"{STATS}runs = [Stats(1, w.item())]\nruns.sort(key=lambda each: each.loss)\n"
    "if runs[0].step > 3: pass",
    f"{STATS}if list(map(lambda each: each.loss, [Stats(1, w.item())]))[0] > 3: pass",
    f"{METER}losses = Meter()\nlosses.update(w.item(), 4)\nif losses.average > 3: pass",
    f"{METER}def validate():\n    losses = Meter()\n    losses.update(w.item(), 4)\n"
    "    return losses.average\nif validate() > 3: pass",
    # Calls that it decides on, callbacks, registries, queues, threads, named tuples, other names.
    "def save(): pass\nsave() if w.item() < 3 else None",
    "def save(): pass\nw.item() < 3 and save()",
    "def save(): pass\nloss = w.item()\nok = loss > 3 or save()",
    "kept = []\nkept.append(3) if w.item() < 3 else None",
    "import torch\nx = torch.zeros(8) if w.item() < 3 else torch.zeros(16)",
    "HOOKS = {}\ndef reg(n):\n    def deco(f):\n        HOOKS[n] = f\n        return f\n"
    "    return deco\n@reg('a')\ndef stop(loss):\n    if loss > 3: pass\nHOOKS['a'](w.item())",
    "def stop(loss):\n    if loss > 3: pass\nHOOKS = {'a': stop}\nHOOKS['a'](w.item())",
    "def stop(loss):\n    if loss > 3: pass\ndef main():\n    hooks = [stop]\n"
    "    for h in hooks: h(w.item())\nmain()",
    "def stop(loss):\n    if loss > 3: pass\ndef fit(cb): cb(w.item())\nfit(stop)",
    "def stop(loss):\n    if loss > 3: pass\nclass T:\n"
    "    def __init__(self, cb): self.cb = cb\n    def fit(self): self.cb(w.item())\n"
    "T(stop).fit()",
    "def fit(cb): cb(w.item())\ndef main():\n    def stop(loss):\n        if loss > 3: pass\n"
    "    fit(stop)\nmain()",
    "def fit(cb): cb(3, w.item())\nfit(lambda i, l: 1/0 if i > l + 9 else 3)\ndef stop(i, l):\n"
    "    if l > 3: pass\nfit(stop)",
    "class Stop:\n    def __call__(self, loss):\n        if loss > 3: pass\n"
    "    def put(self, loss):\n        if loss > 3: pass\ndef fit(cbs):\n"
    "    for cb in cbs: cb(w.item())\nfit([Stop()])",
    "from functools import partial\ndef stop(t, loss):\n    if loss > t: pass\n"
    "p = partial(stop, 3)\np(w.item())",
    "import functools\ndef stop(loss, t):\n    if loss > t: pass\n"
    "p = functools.partial(stop, t=3)\np(w.item())",
    "from functools import partial\ndef stop(t, loss):\n    if loss > t: pass\n"
    "p = partial(stop, 3, w.item())\np()",
    "from functools import partial\ndef stop(t, loss):\n    if loss > t: pass\n"
    "def fit(cb): cb(w.item())\nfit(partial(stop, 3))",
    "def make():\n    def stop(loss):\n        if loss > 3: pass\n    return stop\n"
    "make()(w.item())",
    "def make():\n    def stop(loss):\n        if loss > 3: pass\n    return stop\n"
    "stop = make()\nstop(w.item())",
    "import queue\nq = queue.Queue()\nq.put(w.item())\nif q.get() > 3: pass",
    "import queue\nq = queue.Queue()\nq.put((1, w.item()))\ni, loss = q.get()\nif loss > 3: pass",
    "import queue\nclass L:\n    def __init__(self): self.q = queue.SimpleQueue()\n"
    "    def put(self): self.q.put_nowait(w.item())\n    def get(self):\n"
    "        if self.q.get_nowait() > 3: pass\nl = L(); l.put(); l.get()",
    "from concurrent.futures import ThreadPoolExecutor\ndef read(x): return x.item()\n"
    "with ThreadPoolExecutor(1) as ex:\n    f = ex.submit(read, w)\n    if f.result() > 3: pass",
    "from concurrent.futures import ThreadPoolExecutor\ndef read(x): return x.item()\n"
    "with ThreadPoolExecutor(1) as ex:\n    for l in ex.map(read, [w]):\n        if l > 3: pass",
    "from concurrent.futures import ThreadPoolExecutor\ndef stop(i, x):\n    if x > 3: pass\n"
    "with ThreadPoolExecutor(1) as ex:\n    ex.submit(stop, 3, w.item())",
    "import threading\ndef stop(i, x):\n    if x > 3: pass\n"
    "t = threading.Thread(target=stop, args=(1, w.item()))\nt.start(); t.join()",
    "import threading, queue\ndef work(q):\n    if q.get() > 3: pass\nq = queue.Queue()\n"
    "t = threading.Thread(target=work, args=(q,))\nt.start()\nq.put(w.item())\nt.join()",
    "a, *rest = [1, 2, w.item()]\nfor x in rest:\n    if x > 3: pass",
    "*rest, last = [1, 2, w.item()]\nif last > 3: pass",
    "a, *rest, last = [1, 2, 3, w.item()]\nif last > 3: pass",
    "from typing import overload\n@overload\ndef f(loss: int): ...\n@overload\n"
    "def f(loss: float): ...\ndef f(loss):\n    if loss > 3: pass\nf(w.item())",
    "from typing import overload\nclass C:\n    @overload\n    def f(self, loss: int): ...\n"
    "    @overload\n    def f(self, loss: float): ...\n    def f(self, loss):\n"
    "        if loss > 3: pass\nC().f(w.item())",
    "from typing import NamedTuple\nclass O(NamedTuple):\n    loss: float\n    n: int\n"
    "loss, n = O(w.item(), 3)\nif loss > 3: pass",
    "from typing import NamedTuple\nclass O(NamedTuple):\n    n: int\n    loss: float\n"
    "o = O(loss=w.item(), n=3)\nif o[1] > 3: pass",
    "from dataclasses import dataclass\n@dataclass\nclass S:\n    loss: float\n"
    "    def __post_init__(self):\n        if self.loss > 3: pass\nS(w.item())",
    "import heapq\nh = []\nheapq.heappush(h, (w.item(), 3))\nloss, k = heapq.heappop(h)\n"
    "if loss > 3: pass",
    "import heapq\nh = []\nheapq.heappush(h, w.item())\nif h[0] > 3: pass",
    "import bisect\nh = []\nbisect.insort(h, w.item())\nif h[0] > 3: pass",
    "from operator import itemgetter\nrows = [{'step': 3, 'loss': w.item()}]\n"
    "best = min(rows, key=itemgetter('loss'))\nif best['step'] > 3: pass",
    "import operator\nd = {'a': w.item(), 'b': 3}\n"
    "best = sorted(d.items(), key=operator.itemgetter(1))[0][0]\n"
    "print({'a': [3], 'b': [4]}[best])",
    "losses = [w.item(), 3.]\ni = losses.index(min(losses))\nprint([3, 4][i])",
    "class Stop:\n    def on_end(self, run, loss):\n        if loss > 3: pass\nclass Run:\n"
    "    def __init__(self): self.cbs = [Stop()]\n    def call(self, hook, *args):\n"
    "        for cb in self.cbs: getattr(cb, hook)(self, *args)\n"
    "    def fit(self): self.call('on_end', w.item())\nRun().fit()",
    "class Stop:\n    def on_end(self, run):\n        if run.loss > 3: pass\nclass Run:\n"
    "    def __init__(self): self.cbs = [Stop()]\n    def call(self, hook):\n"
    "        for cb in self.cbs: getattr(cb, hook)(self)\n    def fit(self):\n"
    "        self.loss = w.item()\n        self.call('on_end')\nRun().fit()",
    "class Stop:\n    def on_end(self, loss):\n        if loss > 3: pass\n"
    "getattr(Stop(), 'on_end')(w.item())",
    "import sys\nsys.exit() if w.item() > 3 else None",
    "class R:\n    def __init__(self): self.d = {}\n    def register(self):\n"
    "        def deco(f):\n            self.d[f.__name__] = f\n            return f\n"
    "        return deco\nR1 = R()\n@R1.register()\ndef stop(loss):\n    if loss > 3: pass\n"
    "R1.d['stop'](w.item())",
    "def f(cb, **kw): cb(w.item(), **kw)\ndef stop(loss, a):\n    if loss > 3: pass\nf(stop, a=3)",
    "h = {'loss': []}\nl = h['loss']\nl.append(w.item())\nif h['loss'][0] > 3: pass",
    "class R:\n    def __init__(self): self.h = []\n    def put(self):\n        h = self.h\n"
    "        h.append(w.item())\n    def bad(self):\n        if self.h[0] > 3: pass\n"
    "r = R(); r.put(); r.bad()",
    "class M:\n    def put(self, x): self.v = x\nms = [M(), M()]\n"
    "for m in ms: m.put(w.item())\nif ms[0].v > 3: pass",
    # Names that are bound again, but not on all ways to the branch.
    "x = w.item()\nfor i in range(2):\n    if x > 3: pass\n    x = 3",
    "x = 0\nfor i in range(2):\n    if x > 3: pass\n    x = w.item()",
    "x = 0\nwhile x < 3:\n    x = 4\n    y = x\n    x = w.item() + 5",
    "x = w.item()\nif math.pi > 3:\n    x = 3\nif x > 3: pass",
    "x = w.item()\ntry:\n    x = 3\nexcept ValueError: pass\nif x > 3: pass",
    "x = w.item()\ndef f():\n    if x > 3: pass\nf()\nx = 3",
    "x = w.item()\nx = x * 2\nx = x + 1\nif x > 3: pass",
    "losses = []\nstate = {'l': losses}\nlosses.append(w.item())\nif state['l'][0] > 3: pass",
    "try:\n    x = w.item()\n    x = 1 / (x - x)\nexcept ZeroDivisionError:\n    if x > 3: pass",
    "for x in [w.item()]: pass\nif x > 3: pass",
    "while (x := w.item()) > 3: pass",
    "x = y = w.item()\nx = 3\nif y > x: pass",
    "def f(x):\n    x = x / 2\n    if x > 3: pass\nf(w.item())",
    "if (x := w.item()) and x > 3: pass",
    "import contextlib\nwith contextlib.suppress(Exception):\n    x = w.item()\n    x = 1 / 0\n"
    "if x > 3: pass",
    "for i in range(3):\n    x = w.item()\n    if i == 1: break\n    x = 3\nif x > 3: pass",
    "for i in range(3):\n    try:\n        x = w.item()\n        continue\n    finally:\n"
    "        if x > 3: pass\n    x = 4",
    # The size of what these give depends on the elements.
    "x = (w.to('cpu') > 3).nonzero()",
    "x = w.to('cpu')\nx = x.unique()",
    "x = w.to('cpu').unique_consecutive(return_counts=True)",
    "import torch\nx = w.to('cpu')\nx = torch.masked_select(torch.ones(1), x > 0)",
    "import torch\nimport torch.nn.functional as F\nn = 8 if w.item() > 3 else 16\n"
    "x = F.interpolate(torch.zeros(1, 1, 4), size=n)",
    "import torch\nn = 1 if w.item() > 3 else 2\nx = torch.zeros(4).unfold(0, n, 1)",
    "import torch\nn = 1 if w.item() > 3 else 2\nx = torch.tile(torch.zeros(4), (n,))",
    "import torch\nn = 1 if w.item() > 3 else 2\nx = torch.eye(n)",
    "import torch\nx = w.to('cpu')\nx = torch.ones(1).masked_select(x > 0)",
    "import torch\nx = torch.where(w.to('cpu') > 3)",
    "import torch\nx = torch.nonzero(w.to('cpu'), as_tuple=True)",
    "import torch\nx = torch.argwhere(w.to('cpu'))",
    "import numpy\nx = numpy.flatnonzero(w.to('cpu').numpy())",
    "import numpy\nx = numpy.unique(w.tolist())",
    "x = w.to('cpu').ge(0)\ny = x[x]",
    "x = w.to('cpu')\ny = x[x.gt(0).to('cpu')]",
    "import torch\nx = w.to('cpu')\ny = x[torch.lt(x, 3)]",
    "import torch\nx = w.to('cpu')\ny = x[torch.isclose(x, x)]",
]
STORE = """\
class Store:
    def __init__(self): self.n = 3
    def __setattr__(self, name, value): object.__setattr__(self, name, value)
"""
LIMITED = """\
class Limited:
    n = 3
    @property
    def loss(self): return self.kept
    @loss.setter
    def loss(self, loss):
        self.kept = loss
        if loss > 3: pass
"""
LOGS = """\
class Logs:
    def __init__(self): self.kept = {'n': 3}
    def __getattr__(self, name): return self.kept[name]
    def __getitem__(self, name): return self.kept[name]
    def __setitem__(self, name, value): self.kept[name] = value
    def __iter__(self): return iter(self.kept.values())
    def __lt__(self, other): return self.kept['loss'] < 3
    def __float__(self): return self.kept['loss']
    def put(self, loss): self.kept['loss'] = loss
"""
DECIDES_BY_REFLECTION = [
    f"{STATS}from dataclasses import asdict\nd = asdict(Stats(1, w.item()))\n"
    "if d['loss'] > 3: pass",
    f"{STATS}from dataclasses import astuple\nstep, loss = astuple(Stats(1, w.item()))\n"
    "if loss > 3: pass",
    f"{STATS}from dataclasses import replace\ns = replace(Stats(1, w.item()), step=3)\n"
    "if s.loss > 3: pass",
    f"{STATS}import copy\ns = copy.copy(Stats(1, w.item()))\nif s.is_good: pass",
    f"{STATS}s = Stats(1, w.item())\nfor loss in vars(s).values():\n    if loss > 3: pass",
    "from typing import NamedTuple\nclass O(NamedTuple):\n    n: int\n    loss: float\n"
    "d = O(3, w.item())._asdict()\nif d['loss'] > 3: pass",
    "from typing import NamedTuple\nclass O(NamedTuple):\n    n: int\n    loss: float\n"
    "o = O(3, w.item())._replace(n=4)\nif o.loss > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif vars(t)['total'] > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif t.__dict__['total'] > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif t.__dict__.get('total') > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif getattr(t, 'total') > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif getattr(t, 'mean') > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif getattr(t, 'value')() > 3: pass",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nfor name in ['total']:\n"
    "    if getattr(t, name) > 3: pass",
    f"{TRACKER}t = Tracker()\nsetattr(t, 'total', w.item())\nif t.total > 3: pass",
    f"{TRACKER}t = Tracker()\nfor name in ['total']: setattr(t, name, w.item())\n"
    "if t.total > 3: pass",
    f"{TRACKER}t = Tracker()\nfor name in ['total']: setattr(t, name, w.item())\n"
    "if t.value() > 3: pass",
    f"{TRACKER}t = Tracker()\nvars(t)['total'] = w.item()\nif t.total > 3: pass",
    f"{TRACKER}t = Tracker()\nt.__dict__['total'] = w.item()\nif t.value() > 3: pass",
    f"{TRACKER}t = Tracker()\nt.__dict__.update(total=w.item())\nif t.total > 3: pass",
    "from types import SimpleNamespace\ns = SimpleNamespace(loss=w.item())\n"
    "if vars(s)['loss'] > 3: pass",
    f"{STORE}s = Store()\ns.loss = w.item()\nif s.loss > 3: pass",
    "class S:\n    def __setattr__(self, name, value):\n        if value > 3: pass\n"
    "s = S()\ns.loss = w.item()",
    f"{LIMITED}x = Limited()\nx.loss = w.item()",
    f"{LIMITED}def put(x): x.loss = w.item()\nput(Limited())",
    f"{LIMITED}x = Limited()\nsetattr(x, 'loss', w.item())",
    f"{LIMITED}class More(Limited): pass\nx = More()\nx.loss = w.item()",
    f"{LOGS}x = Logs()\nx.put(w.item())\nif x.loss > 3: pass",
    f"{LOGS}x = Logs()\nx.put(w.item())\nif x['loss'] > 3: pass",
    f"{LOGS}x = Logs()\nx['loss'] = w.item()\nif x['loss'] > 3: pass",
    f"{LOGS}x = Logs()\nx.put(w.item())\nfor loss in x:\n    if loss > 3: pass",
    f"{LOGS}x = Logs()\nx.put(w.item())\nif x < Logs(): pass",
    f"{LOGS}x = Logs()\nx.put(w.item())\nif float(x) > 3: pass",
    # An object that the number chose may be None.
    "x = None if w.item() > 3 else 3\nif x is None: pass",
    "x = None if w.item() > 3 else 3\nif x is not None: pass",
]
DECIDES_AS_TEXT = [
    "x = float(f'{w.item():.3f}')\nif x > 3: pass",
    "x = float(str(w.item()))\nif x > 3: pass",
    "x = float('%.3f' % w.item())\nif x > 3: pass",
    "x = float('{:.3f}'.format(w.item()))\nif x > 3: pass",
    "t = format(w.item(), '.3f')\nif float(t.strip()) > 3: pass",
    "x = int(f'{w.item():.0f}')",
    "def text(x): return f'{x:.3f}'\nif float(text(w.item())) > 3: pass",
    "def low(t): return float(t) < 3\nif low(f'{w.item()}'): pass",
    "import json\nh = json.loads(json.dumps({'loss': w.item()}))\nif h['loss'] > 3: pass",
    "import ast\nif ast.literal_eval(repr(w.item())) > 3: pass",
]
DECIDES_AFTER_A_FILE = [
    "import json\nwith open(path, 'w') as f: json.dump({'loss': w.item()}, f)\n"
    "with open(path) as f: h = json.load(f)\nif h['loss'] > 3: pass",
    "import pickle\nwith open(path, 'wb') as f: pickle.dump([w.item()], f)\n"
    "with open(path, 'rb') as f: h = pickle.load(f)\nfor loss in h:\n    if loss > 3: pass",
    "import torch\ntorch.save({'loss': w.item(), 'n': 3}, path)\n"
    "def load():\n    kept = torch.load(path)\n    return kept['loss']\nif load() > 3: pass",
]
SHOWN_BY_REFLECTION = [
    f"{STATS}from dataclasses import asdict, replace\nd = asdict(Stats(1, w.item()))\n"
    "if d['step'] > 3 or replace(Stats(1, w.item()), step=3).step > 3: print(d)",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif vars(t)['count'] > 3: print(vars(t))",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif getattr(t, 'count') > 3: print(t.total)",
    f"{TRACKER}t = Tracker()\nsetattr(t, 'total', w.item())\nif t.count > 3: print(t.total)",
    f"{LIMITED}class Other:\n    def put(self): self.loss = w.item()\nx = Other()\nx.put()\n"
    "if Limited().n > 3: print(x.loss)",
    f"{LOGS}x = Logs()\nx.put(w.item())\nprint(x.loss, x['loss'], *x)",
    "import json\nprint(json.dumps({'loss': w.item()}), float(f'{w.item():.3f}'))",
    "import torch\ntorch.save({'loss': w.item(), 'n': 3}, path)\nkept = torch.load(path)\n"
    "if kept['n'] > 3: print(kept['loss'])",
    "losses = {}\nlosses[f'{w.item()}'] = 3\nif f'{w.item()}'.startswith('n'): pass",
]
OPTIMIZER = """\
import torch
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(opt, 3)
opt.step()
"""
SAVES_BEST = """\
import torch
model = torch.nn.Linear(1, 1)
if w.item() < 3: torch.save(model.state_dict(), "/dev/null")
"""
SAVES_SOME = """\
import torch
model = torch.nn.Linear(1, 1)
if w.item() < 3: torch.save({{k: v for k, v in model.{} if {}}}, "/dev/null")
"""
BRANCHES_THAT_SHOW = [
    SAVES_SOME.format("state_dict().items()", "k.endswith(('.a', '.b'))"),
    SAVES_SOME.format("state_dict().items()", "'lora' in k and not k.startswith('base')"),
    SAVES_SOME.format("named_parameters()", "v.requires_grad"),
    f"names = {{'weight'}}\n{SAVES_SOME.format('named_parameters()', 'k in names')}",
    "print(int(w.item()), math.ceil(w), round(w.item()))",
    "def steps(x): return int(x)\nprint(steps(w.item()))",
    "import torch\nx = torch.zeros(3).mean()\nif w.item() < 3: print(x)",
    "import torch\nx = torch.zeros(3)\nif w.item() < 3: print(x.shape, len(x), f'{x.dtype}')",
    "import torch\nx = torch.zeros(3)\nx.backward\nif w.item() < 3: print(x)",
    "import torch\nx = torch.zeros(3)[0]\nif w.item() < 3: print(f'{x:.3f}')",
    "import torch\nx = torch.zeros(3, 2)[0]\nif w.item() < 3: y = x.detach().cpu()",
    f"{OPTIMIZER}if w.item() < 3: schedule.step()\nlr = schedule.get_last_lr()\nprint(lr)",
    f"{OPTIMIZER}kept = {{k: v.cpu() for k, v in model.state_dict().items()}}\n"
    "if w.item() < 3: model.load_state_dict(kept)",
    f"{OPTIMIZER}if w.item() < 3: print(model, opt)",
    SAVES_BEST,
    "at = 0\nif w.item() < 3: at = 3\ntry: print(at)\nexcept Exception: pass",
    "best, at = 9.0, 0\nfor step in range(3):\n    loss = w.item()\n    if loss < best:\n"
    "        best, at = loss, step\n        print(best)\nprint(best, at)",
    f"{STOPPER}stopper = Stopper()\nstopper(w.item())\nprint(stopper.best)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nbest = 9.0\nloss = w.item()\n"
    "if loss < best:\n    best = loss\n    torch.save(model.state_dict(), path)",
    "def save(model, best):\n    if best: print('best')\nloss = w.item()\nsave(3, loss < 3)",
    "import torch\nopt = torch.optim.SGD([torch.zeros(1)])\n"
    "rates = torch.optim.lr_scheduler.StepLR(opt, 1)\nif w.item() > 3: rates.step()",
]
BRANCHES_THAT_DECIDE = [
    SAVES_SOME.format("state_dict().items()", "v.sum() > 3"),
    f"kept = []\n{SAVES_SOME.format('state_dict().items()', 'kept.append(v) or k')}",
    SAVES_SOME.format("state_dict().items()", "v.half() is k"),
    SAVES_SOME.replace("k: v", "k: v.clone()").format("state_dict().items()", "'a' in k"),
    "class Names:\n    def __contains__(self, name): return print(name)\nnames = Names()\n"
    + SAVES_SOME.format("named_parameters()", "k in names"),
    "n = int(w.item())\nprint(n)\nx = range(n)",
    "loss = w.item()\nprint(int(loss))\nassert loss < 9",
    "def steps(x): return int(x)\nprint(list(range(steps(w.item()))))",
    # A text of a tensor takes memory of the card, and so does a comparison.
    "import torch\nx = torch.zeros(3)\nif w.item() < 3: print(x)",
    "import torch\nx = torch.zeros(3).half()\nif w.item() < 3: print(f'{x} {3}')",
    "import torch\nx = torch.zeros(3)\ny = x.softmax(0)\nif w.item() < 3: print('%s' % y)",
    "import torch\nx = torch.zeros(3)\nif w.item() < 3: print(x == x)",
    "import torch\nmodel = torch.nn.Linear(1, 1)\nmodel.parameters()\n"
    "x = model(torch.zeros(3, 1))\nif w.item() < 3: print(x[0])",
    # A copy of a part with gaps is made on the card first.
    "import torch\nx = torch.zeros(3, 2)[:, 0]\nif w.item() < 3: y = x.cpu()",
    "import torch\nx = torch.zeros(3, 2)\nx = x.expand(3, 2)\n"
    "if w.item() < 3: y = x.detach().cpu()",
    # An optimizer makes a new state.
    f"{OPTIMIZER}state = opt.state_dict()\nif w.item() < 3: opt.load_state_dict(state)",
    f"{OPTIMIZER}if w.item() < 3: schedule.step()\nif schedule.last_epoch > 3: pass",
    f"{OPTIMIZER}if w.item() < 3: schedule.step()\n"
    "lr = opt.param_groups[0]['lr']\nwhile lr > 3: pass",
    f"{SAVES_BEST}from pathlib import Path\nx = list(Path('/x').rglob('*.pt'))",
    f"{SAVES_BEST}import os\nx = os.access('/x/best.pt', os.R_OK)",
    f"{SAVES_BEST}import os\nx = os.path.getmtime('/dev/null')",
    f"{SAVES_BEST}model.register_state_dict_post_hook(lambda *_: None)",
    f"{SAVES_BEST}class Module:\n    def get_extra_state(self): pass",
    "import torch\nmodel = torch.nn.Linear(1, 1)\n"
    "torch.nn.utils.parametrizations.weight_norm(model)\nif w.item() < 3: y = model.weight.cpu()",
    "class Module:\n    def extra_repr(self): return 'x'\nx = Module()\nif w.item() < 3: print(x)",
    "if w.item() < 3: at = 3\ntry: print(at)\nexcept NameError: pass",
    "class Best:\n    def put(self, x):\n        if x < 3: self.at = 3\n    def show(self):\n"
    "        try: print(self.at)\n        except AttributeError: return False\n"
    "best = Best()\nbest.put(w.item())\nbest.show()",
    "best, bad = 9.0, 0\nfor _ in range(3):\n    loss = w.item()\n"
    "    if loss < best: best, bad = loss, 0\n    else: bad += 1\n    if bad > 2: break",
    f"{STOPPER}class Patient(Stopper):\n    def step(self, loss):\n        self.bad = 0\n"
    "        if loss < self.best:\n            self.bad += 1\n        return self.bad > 2\n"
    "if Patient().step(w.item()): raise SystemExit",
    "import copy, torch\nmodel = torch.nn.Linear(1, 1)\n"
    "if w.item() < 3: kept = copy.deepcopy(model.state_dict())",
    "import torch\nmodel = torch.nn.Linear(1, 1)\n"
    "if w.item() < 3: kept = {k: v.clone() for k, v in model.state_dict().items()}",
    "import torch\nx = torch.zeros(3)\nif w.item() < 3: best = x",
    "size = 3\nif w.item() < 3: size = 4\nx = w.reshape(size)",
    "import torch\nsize, best = 3, 9.0\nfor n in range(3):\n    loss = w.item()\n"
    "    if loss < best: best, size = loss, n\n"
    "x = torch.nn.functional.interpolate(torch.zeros(1, 1, 4), size=size + 1)",
    "best, at = 9.0, 0\nfor n in range(3):\n    loss = w.item()\n"
    "    if loss < best: best, at = loss, n\ndef start(f): f(at)\nstart(print)",
    "best = 9.0\nloss = w.item()\nif loss < best: best = loss\nx = range(int(best))",
    "best = 9.0\nloss = w.item()\nif loss < best: best = loss\nwhile best > 3: pass",
    "kept = None\nloss = w.item()\nif loss < 3: kept = loss\nif kept is not None: x = w.reshape(3)",
    "if w.item() > 3: print(eval('3'))",
]
PACKAGE = """\
class Meter:
    def __init__(self): self.total, self.count = 0.0, 0
    def update(self, x): self._add(x.item())
    def _add(self, loss):
        self.total += loss
        self.count += 1
    @property
    def mean(self): return self.total / self.count
    def compute(self): return self.total
def read(x): return both(x)[0]
def both(x):
    loss = x.item()
    return loss, 3
def stop(x): return True if x.item() > 3 else False
def silent(x):
    x.item()
    return 3
def inner(loss): return 3 if loss > 3 else 4
def nested(x): return inner(x.item())
def low(loss):
    if loss > 3: return 4
    return 3
def fit(x): return low(x.item())
"""
OF_PACKAGES_DECIDES = [
    "if package.read(w) > 3: pass",
    "loss, n = package.both(w)\nwhile loss > 3: pass",
    "m = package.Meter()\nm.update(w)\nif m.total > 3: pass",
    "m = package.Meter()\nm.update(w)\nif m.mean > 3: pass",
    "m = package.Meter()\nm.update(w)\nif m.compute() > 3: pass",
    "class Mine(package.Meter): pass\nm = Mine()\nm.update(w)\nif m.compute() > 3: pass",
    "x = range(int(package.read(w)))",
    "x = range(package.nested(w))",
]
OF_PACKAGES_SHOWN = [
    "print(package.read(w))",
    "loss, n = package.both(w)\nif n > 4: print(loss)",
    "m = package.Meter()\nm.update(w)\nif m.count > 3: print(m.total, m.mean, m.compute())",
    "if package.silent(w) > 4: pass",
    "package.fit(w)",
]


SHOWN = [
    "import torch\nx = w.to('cpu')\nprint(torch.where(x > 0, x, 3), x.gt(0))",
    "x = w.to('cpu')\nprint(x.eq(x).float().mean())",
    "import torch\nx = w.to('cpu')\nprint(x.isnan().nonzero(), torch.isfinite(x).unique())",
    "w.item()",
    "print(w.item(), float(w))",
    "print(f'{w.item():.3f}', '%.3f' % w.item(), 'loss {}'.format(w.item()), str(w.item()))",
    "x = round(w.item(), 3)\nprint(x)",
    "losses = []\nlosses.append(w.item())\nif losses: print(len(losses))\nwhile not losses: pass",
    "logs = {'loss': w.item(), 'step': 7}\nif logs['step'] % 5: print(logs)",
    "step, loss = 7, w.item()\nif step % 5: print(loss)",
    "def both(x):\n    return x.item(), 3\nloss, n = both(w)\nif n > 2: print(loss)",
    "if not math.isfinite(w.item()): raise SystemExit",
    "loss = w.item()\nif loss is not None: print(loss)",
    "losses = [w.item()]\nif 3 > 2 and losses: print(losses)\nlosses and print(losses)",
    "total = 0.0\nfor step in range(3):\n    total += w.item()\nprint(total / 3)",
    "def show(loss):\n    loss = 3\n    if loss: pass\nloss = w.item()\nshow(1)",
    "x = w.cpu()\nif x.shape[0]: print(x)",
    "import json\njson.dumps({'loss': w.item()})",
    "if True:\n    print(w.item())",
    "logs = {}\nlogs['loss'] = w.item()\nlogs['step'] = 3\nif logs['step'] > 2: print(logs)",
    "logs = {'step': 1}\nlogs.update(loss=w.item())\nif logs['step'] > 2: print(logs)",
    "is_best = w.item() < 3 and 2 > 1\nprint(is_best)",
    "h = {'loss': []}\nh['loss'].append(w.item())\nif len(h['loss']) % 3 == 0: print(h)",
    "logs = {}\nlogs['loss'] = w.item()\nfor k, v in logs.items(): print(k, v)",
    "logs = {'loss': w.item()}\nif logs.get('step') is None and logs.get('step', 0) < 1: pass",
    "losses = [w.item()]\nfor i, loss in enumerate(losses):\n    if i % 2: print(loss)",
    "rate = w.cpu().argmax().float().item()",
    "logs = {'loss': w.item()}\nfor i, (k, v) in enumerate(logs.items()): print('ab'[k == i], v)",
    "print(math.exp(w.item()) if w.item() < 20 else float('inf'))",
    "loss = w.item()\nx = math.exp(loss) if loss < 20 else float('inf')\nprint(x)",
    "logs = {'loss': w.item()}\nfor name in logs:\n    if name == 'loss': print(logs[name])",
    "logs = {'loss': w.item()}\nfor name in sorted(logs):\n    if name > 'a': pass",
    "logs = {'loss': w.item()}\nfor i, name in enumerate(logs):\n    if name > 'a': pass",
    "logs = {'loss': w.item()}\nif max(logs) > 'a' or [*logs][0] > 'a': pass",
    "logs = {'loss': w.item()}\nfor item in logs.items():\n    if item[0] > 'a': pass",
    "for n, loss in zip([1], [w.item()]):\n    if n > 3: print(loss)",
    "for n, (i, loss) in zip([1], enumerate([w.item()])):\n    if n > i: print(loss)",
    "logs = {'loss': w.item()}\nif 'loss' in logs: print(logs)",
    "logs = {}\nfor name in ('a', 'b'): logs[name] = w.item()\n"
    "for name in sorted(logs): print(name, logs[name])",
    "for loss in [w.item()]: print(loss)\nfor loss in [1, 2]:\n    if loss > 1: pass",
    "loss = w.item()\nprint(loss)\nfor loss, n in [(1, 2)]:\n    if loss > n: pass",
    f"{TRACKER}print(Tracker().last)",
    f"{TRACKER}t = Tracker()\nt.put(w.item())\nif t.count > 3: print(t.mean, t.value())",
    f"{METER}losses = Meter()\nlosses.update(w.item(), 4)\nif losses.count > 3: print(losses)",
    f"{METER}losses = Meter()\nlosses.update(w.item(), 4)\nmeters = [losses]\n"
    "for each in meters:\n    if each.count > 3: print(each.average)",
    f"{METER}times, losses = Meter(), Meter()\nlosses.update(w.item())\n"
    "if times.average > 3: print(losses.average)",
    "print(max(map(float, [w])), sorted(map(float, [w])))",
    "print(list(map(float, [w])), [*map(float, [w])])\nfor loss in map(float, [w]): print(loss)",
    "print(sorted([w, w], key=float), max([w, w], key=lambda x: x.item()))",
    "best = max([w, w], key=lambda x: x.item())\nprint(best.item())",
    "losses = [w.item()]\nlosses.sort()\nif losses: print(losses[0])",
    "def read():\n    yield w.item()\nfor loss in read(): print(loss)\nprint(sum(read()))",
    "def read():\n    yield 3, w.item()\nfor i, loss in read():\n    if i > 2: print(loss)",
    "print(sum(x.item() for x in [w]) / 3)",
    "def show(step, loss):\n    if step > 2: print(loss)\nshow(3, w.item())",
    "def show(loss, **logs):\n    if logs['step']: print(logs)\nshow(w.item(), step=3, a=w.item())",
    "def show(loss): print(loss)\nif show(w.item()): pass",
    "def count(loss): return 3\nif count(w.item()) > 2: pass",
    "def show(logs):\n    for k, v in logs.items(): print(k, v)\nshow({'loss': w.item()})",
    "def show(loss):\n    if isinstance(loss, float) and loss is not None: print(f'{loss:.3f}')\n"
    "show(w.item())",
    "def show(loss):\n    if math.isnan(loss): raise ValueError\nshow(w.item())",
    "def size(x): return len(x)\nif size([w.item()]): pass",
    f"{STATS}stats = Stats(1, w.item())\nif stats.step > 3: print(stats)",
    f"{STATS}def show(stats):\n    if stats.step: print(stats.loss)\nshow(Stats(1, w.item()))",
    f"{STATS}best = min([Stats(1, w.item())], key=lambda each: each.step)\n"
    "if best.step > 3: print(best.loss)",
    f"{STATS}if list(map(lambda each: each.step, [Stats(1, w.item())]))[0] > 3: pass",
    "import logging\nlog = logging.getLogger('x')\nlog.warning('loss %.3f', w.item())",
    "class Board:\n    def log(self, logs):\n        for k, v in logs.items(): print(k, v)\n"
    "board = Board()\nboard.log({'loss': w.item()})",
    "class Log:\n    def log(self, loss):\n        if loss > 3: pass\n"
    "import logging\nlogging.log(10, w.item())\nlogging.getLogger('x').log(10, w.item())",
    f"{STOPPER}class Rate:\n    def step(self, loss): self.loss = loss\n"
    "rate = Rate()\nrate.step(w.item())",
    f"{STOPPER}import types\nrate = types.SimpleNamespace(step=print)\nrate.step(w.item())",
    "import io, json\nfile = io.StringIO()\nfile.write(str(w.item()))\njson.dump([w.item()], file)",
    "args = {'loss': 'l1'}\ndef of(loss): return loss == 'l1'\nlogs = {'loss': w.item()}\n"
    "if of(args['loss']): print(logs)",
    "class Step:\n    def __init__(self, loss): self.loss = loss\nclass Options:\n"
    "    def __init__(self): self.loss = 'l1'\n    def is_l1(self): return self.loss > 'l'\n"
    "if Options().is_l1(): print(Step(w.item()))",
    "def half(x): return x / 2\nprint(half(w.item()))\nif half(3) > 1: pass",
    "steps = [3]\nprint([v / 2 for v in [w.item()]], [v for v in steps if v > 1])",
    "from collections import OrderedDict\nlogs = OrderedDict([('loss', w.item())])\n"
    "if logs: print(logs)",
    "logs = {'a': {'loss': []}}\nlogs['a']['loss'].append(w.item())\n"
    "print({k: sum(v) / len(v) for k, v in logs['a'].items() if v})",
    "import torch\nsums = torch.tensor([3.0, w.item()]).tolist()\nprint(int(sums[0]), sums[1])",
    "logs = {'loss': w.item()}\nif 'step' in logs.keys() or len(list(logs.keys())) > 2: pass",
    "x = w.cpu()\nif x.requires_grad: print(x)",
    "logs = dict(loss=w.item(), step=3)\nif logs['step'] > 2: print(logs)",
    "logs = {'train': {'loss': w.item(), 'step': 3}}\nif logs['train']['step'] > 2: print(logs)",
    # Tests for NaN and infinity, fields, and names that are bound again.
    "loss = w.item()\nif loss != loss: raise ValueError",
    "loss = w.item()\nassert loss == loss",
    "loss = w.item()\nif not loss == loss: print('nan')",
    "loss = w.item()\n"
    "if loss == float('inf') or loss == -float('inf') or loss > math.inf: raise ValueError",
    "logs = {'loss': w.item()}\nif logs['loss'] != logs['loss']: raise ValueError",
    "loss = w.item()\nif loss in (float('inf'), -math.inf): raise ValueError",
    "def bad(x): return x != x or x == math.inf\nif bad(w.item()): raise ValueError",
    "from collections import namedtuple\nM = namedtuple('M', ['loss', 'n'])\n"
    "m = M(w.item(), 3)\nif m.n > 2: print(m.loss)",
    "from collections import namedtuple\nM = namedtuple('M', 'loss, n')\n"
    "m = M(loss=w.item(), n=3)\nloss, n = m\nif n > 2: print(m.loss, loss)",
    "from collections import namedtuple\nM = namedtuple('M', 'loss n')\nms = [M(w.item(), 3)]\n"
    "for loss, n in ms:\n    if n > 2: print(loss)\nfor m in ms:\n    if m.n > 2: print(m)",
    "from types import SimpleNamespace\ns = SimpleNamespace(loss=w.item(), n=3)\n"
    "if s.n > 2: print(s.loss)",
    "from argparse import Namespace\ns = Namespace(loss=w.item(), n=3)\nif s.n > 2: print(s.loss)",
    "x = w.item()\nprint(x)\nx = len([1])\nif x > 3: pass",
    "def f():\n    x = w.item()\n    print(x)\n    x = 3\n    return range(x)\nf()",
    "x = 3\nif x > 2: pass\nx = w.item()\nprint(x)",
    "for i in range(3):\n    x = i\n    if x > 2: pass\n    x = w.item()\n    print(x)",
    "x = w.item()\nprint(x)\nfor i in range(3):\n    x = i\n    if x > 2: pass",
    "def f(loss):\n    print(loss)\n    loss = 3\n    if loss > 2: pass\nf(w.item())",
    "import contextlib\nx = w.item()\nprint(x)\nwith contextlib.suppress(ValueError):\n"
    "    x = 3\nif math.pi > 3:\n    with contextlib.suppress(ValueError):\n        x = 3\n"
    "        if x > 3: pass",
    "if math.pi > 3:\n    x = w.item()\n    print(x)\nelse:\n    x = 3\n    if x > 2: pass",
    "out = w.item()\nprint(out)\nout, n = [1, 2], 3\nif out[0] > 2: pass",
    "h = []\nfor e in range(2):\n    train = []\n    train.append(w.item())\n"
    "    h.append(sum(train) / len(train))\n    train = []\n"
    "    if train and train[0] > 3: pass\nprint(h)",
    "t = 0\nt += w.item()\nprint(t)\nt = 3\nif t > 2: pass",
    "x = w.item()\nx = str(x)\nif x.startswith('n'): pass",
    # What the number does not decide, beside what it would.
    "def fmt(x): return f'{x:.3f}'\nprint('inf' if w.item() > 100 else 'ok')",
    "loss = w.item()\n"
    "print(f'{loss:.3f}' if loss < 9 else 'big', str(loss) if loss > 1 else round(loss, 2))\n"
    "print('{:.2f}'.format(loss) if loss > 2 else '')",
    "import numpy as np\nloss = w.item()\nppl = np.exp(loss) if loss < 20 else float('inf')\n"
    "print(ppl)",
    "def text(x): return str(x)\nloss = w.item()\n"
    "print(f\"{text(loss) if loss > 3 else '-'}\", text(loss) if loss > 3 else '-')",
    "loss = w.item()\nbad = loss > 3 or loss < 1\nprint(bad)",
    "import numpy as np\nif np.isnan(w.item()) or not np.isfinite(w.item()): raise ValueError",
    "from typing import NamedTuple\nclass O(NamedTuple):\n    loss: float\n    n: int\n"
    "loss, n = O(w.item(), 3)\nif n > 3: print(loss)",
    "a, *rest = [w.item(), 2, 3]\nif rest[0] > 3: print(a)",
    "a, *rest = [w.item(), 2, 3]\nfor x in rest:\n    if x > 3: print(a)",
    "from typing import overload\n@overload\ndef f(loss: int): ...\n@overload\n"
    "def f(loss: float): ...\ndef f(loss): print(loss)\nf(w.item())",
    "from functools import partial\ndef show(tag, loss):\n    if tag > 3: print(loss)\n"
    "p = partial(show, 3)\np(w.item())",
    "from functools import partial\nshow = partial(print, flush=True)\nshow(w.item())",
    "import queue\nq = queue.Queue()\nq.put((1, w.item()))\ni, loss = q.get()\n"
    "if i > 3: print(loss)",
    "import queue\nq = queue.Queue(9)\nq.put(w.item())\n"
    "if q.qsize() > 3 or q.full() or q.maxsize > 9: print(q.get())",
    "from concurrent.futures import ThreadPoolExecutor\ndef read(x): return x.item()\n"
    "with ThreadPoolExecutor(1) as ex:\n    print(ex.submit(read, w).result())",
    "def show(loss): print(loss)\nH = {'a': show}\nH['a'](w.item())",
    "def fit(cb): cb(3, w.item())\ndef show(i, loss):\n    if i > 3: print(loss)\nfit(show)",
    "def lam(step):\n    return 1.0 if step < 3 else 0.5\nimport types\n"
    "def LambdaLR(o, f): return f(3)\nsched = LambdaLR(None, lam)\n"
    "def fit(log): log(w.item())\nfit(print)",
    "import logging\nclass T:\n    def __init__(self, log=print): self.log = log\n"
    "    def fit(self): self.log(w.item())\nT().fit()\nT(logging.info)",
    "import heapq\nh = []\nheapq.heappush(h, (w.item(), 3))\nprint(h)\n"
    "if len(h) > 3: heapq.heappop(h)",
    "from operator import itemgetter\nrows = [{'step': 3, 'loss': w.item()}]\n"
    "best = min(rows, key=itemgetter('step'))\nif best['step'] > 3: print(best['loss'])",
    "from operator import itemgetter\nrows = [{'step': 3, 'loss': w.item()}]\n"
    "for r in sorted(rows, key=itemgetter('loss')): print(r)",
    "class Meter:\n    def __init__(self): self.d = {}\n    def put(self, **kw):\n"
    "        for k, v in kw.items():\n            if k == 'loss': self.d[k] = v\n"
    "m = Meter(); m.put(loss=w.item())\nprint(m.d)",
    "class A:\n    def __init__(self): self.loss, self.n = w.item(), 3\na = A()\n"
    "if vars(a)['n'] > 3 or getattr(a, 'n') > 3: print(vars(a))",
    "from dataclasses import dataclass, asdict\n@dataclass\nclass S:\n    loss: float\n"
    "    n: int\nd = asdict(S(w.item(), 3))\nif d['n'] > 3: print(d)",
    "rows = []\nfor i in range(3): rows.append({'step': i, 'loss': w.item()})\nfor r in rows:\n"
    "    if r['step'] % 2: print(r['loss'])\n"
    "print('\\n'.join(f\"{r['step']} {r['loss']:.3f}\" for r in rows))",
    "class Stop:\n    def on_end(self, run):\n        if run.step > 3: print(run.loss)\n"
    "class Run:\n    def __init__(self): self.cbs = [Stop()]\n    def call(self, hook):\n"
    "        for cb in self.cbs: getattr(cb, hook)(self)\n    def fit(self):\n"
    "        self.loss, self.step = w.item(), 3\n        self.call('on_end')\nRun().fit()",
    "def run(loss, model): return loss\nloss = run(w.item(), 3)\nprint(loss)",
    "lr = 0.1 if w.item() < 3 else 0.01\nopt = {'lr': lr}\nprint(opt)",
    "import torch\nrate = 0.1 if w.item() < 3 else 0.01\nx = torch.clamp(torch.ones(3), max=rate)",
    "import torch\np = 0.1\np = min(max(p + (0.01 if w.item() > 0.6 else -0.01), 0), 0.8)\n"
    "x = torch.clamp(torch.ones(3), max=p / 2)",
    "from textwrap import shorten\nprint(shorten('x', 9) if w.item() > 3 else 'y')",
    "from typing import NamedTuple\nfrom collections import namedtuple\n"
    "M = namedtuple('M', 'class loss', rename=True)\nm = M(1, w.item())\nprint(m)",
    "def f(cb):\n    log = cb.info\n    log(w.item())\nimport logging\nf(logging)",
    "h = {'loss': [], 'n': []}\nl = h['loss']\nl.append(w.item())\n"
    "if len(l) > 3 or h['n']: print(l)",
    "x = []\ny = x\nx = y\nx.append(w.item())\nprint(x, y)",
]


class Number:
    """A stand-in for a tensor of one floating-point number on the device."""

    shape = (1,)
    requires_grad = False
    integers = False

    def __init__(self) -> None:
        self.reached: list[str] = []

    @property
    def decided(self) -> list[bool]:
        return [bool(each) for each in self.reached]

    def item(self) -> float:
        self.reached.append(reached(sys._getframe(1), self.integers))
        return 0.0

    def cpu(self) -> Number:
        self.reached.append(reached(sys._getframe(1), self.integers))
        return Number()

    def to(self, device: str) -> torch.Tensor:
        return torch.tensor([self.item_of(sys._getframe(1))], device=device)

    def tolist(self) -> list[float]:
        return [self.item_of(sys._getframe(1))]

    def __float__(self) -> float:
        return self.item_of(sys._getframe(1))

    def __bool__(self) -> bool:
        return bool(self.item_of(sys._getframe(1)))

    def item_of(self, frame: object) -> float:
        self.reached.append(reached(frame, self.integers))  # type: ignore[arg-type]
        return 0.0

    def long(self) -> Number:
        return self

    argmax = float = long

    def reshape(self, size: int) -> Number:
        return self

    def __gt__(self, other: object) -> Number:
        return self


def run(
    program: str,
    folder: Path,
    text: bytes | None = b"as the program",
    is_main: bool = False,
) -> list[bool]:
    return number_of(program, folder, text, is_main).decided


def number_of(
    program: str,
    folder: Path,
    text: bytes | None = b"as the program",
    is_main: bool = False,
) -> Number:
    """`text`: what the program's file has when the program runs; None: it is removed. `is_main`:
    the file is a module with the name that a started program has."""
    file = folder / "program.py"
    text = program.encode() if text == b"as the program" else text
    if text is not None:
        file.write_bytes(text)
    number = Number()
    names = {"w": number, "math": math, "path": str(folder / "saved")}
    names |= {"__name__": "__main__", "__file__": str(file)} if is_main else {}
    exec(compile(program, str(file), "exec"), names)
    return number


PARTS = f"""\
{METER}{STOPPER}{STATS}
run = [Stopper()][0]
def stop(loss):
    run(loss)
class Reader:
    def __init__(self, number):
        self.number = number
    @property
    def loss(self):
        return self.number.item()
    def losses(self):
        yield 3, self.number.item()
def losses(number):
    yield number.item()
def half(loss):
    return loss / 2
def is_low(loss):
    return half(loss) < 3
def show(loss):
    print(half(loss))
from collections import namedtuple
Pair = namedtuple("Pair", "loss count")
"""
IN_OTHER_FILES = [
    "from parts import Stopper\nStopper().step(w.item())",
    "import parts as p\nstopper = p.Stopper()\nstopper(w.item())",
    "def fit(stopper): stopper.step(w.item())\nimport parts\nfit(parts.Stopper())",
    "from parts import Meter\nlosses = Meter()\nlosses.update(w.item())\n"
    "if losses.average > 3: pass",
    "from parts import Stats\nif Stats(1, w.item()).is_good: pass",
    "import parts\nparts.stop(w.item())",
    "from parts import run\nrun(w.item())",
    "from parts import is_low\nif is_low(w.item()): pass",
    "import parts\nif parts.Reader(w).loss > 3: pass",
    "import parts\nfor step, loss in parts.Reader(w).losses():\n    if loss > 3: pass",
    "import parts\nfor loss in parts.losses(w):\n    if loss > 3: pass",
    "from parts import Stopper\nclass Patient(Stopper):\n    pass\nPatient().step(w.item())",
    "import parts\nloss, count = parts.Pair(w.item(), 3)\nif loss > 3: pass",
]
SHOWN_IN_OTHER_FILES = [
    "from parts import Meter\nlosses = Meter()\nlosses.update(w.item())\n"
    "if losses.count > 3: print(losses)",
    "from parts import Stats\nstats = Stats(1, w.item())\nif stats.step > 3: print(stats)",
    "from parts import show, half\nshow(w.item())\nif half(3) > 1: pass",
    "import parts\nprint(parts.Reader(w).loss)",
    "import parts\nfor step, loss in parts.Reader(w).losses():\n    if step > 3: print(loss)",
    "import parts\nfor loss in parts.losses(w): print(loss)",
    "import parts\npair = parts.Pair(w.item(), 3)\nif pair.count > 3: print(pair.loss)",
]
CHANGED = {
    "missing": None,
    "empty": b"",
    "other lines": b"x = 3\n" * 9,
    "no Python": b"if (\n",
    "no text": b"\xff\xfe\x00",
    "zeros": b"x = 3\x00\n",
    "too deep": b"x = " + b"-" * 20_000 + b"1\n",
    "too long": b"x = " + b"1 + " * 20_000 + b"1\n",
}


FORK = """\
import os, signal, sys, threading
from ferro_alloc.sim import _float_uses, _sources
def read():
    return 3 if _float_uses.reached(sys._getframe(1)) else 4
is_held = threading.Event()
def hold():
    with _sources.search_lock:
        is_held.set()
        threading.Event().wait(50)
threading.Thread(target=hold, daemon=True).start()
is_held.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    if read() > 3: pass
    os._exit(0)
os._exit(os.waitpid(child, 0)[1] != 0)
"""


@pytest.fixture(autouse=True)
def no_sources_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sources, "_sources", {})
    monkeypatch.setattr(_sources, "_searched", [])
    # The tests and benchmarks that this process has loaded are not a part of the programs.
    checkout = str(Path(__file__).parents[3]) + "/"
    monkeypatch.setattr(_sources, "_LIBRARIES", (*_sources._LIBRARIES, checkout))


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the program can import."""
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "parts", ModuleType("parts"))  # restored
    del sys.modules["parts"]


@pytest.mark.parametrize(
    "program", [*DECIDES, *DECIDES_BY_REFLECTION, *DECIDES_AS_TEXT, *DECIDES_AFTER_A_FILE]
)
def test_it_decides(program: str, tmp_path: Path) -> None:
    assert run(program, tmp_path)[0], program


@pytest.mark.parametrize("program", [*SHOWN, *SHOWN_BY_REFLECTION])
def test_it_is_only_shown(program: str, tmp_path: Path) -> None:
    decided = run(program, tmp_path)
    assert decided
    assert not any(decided), program


@pytest.mark.parametrize("program", BRANCHES_THAT_SHOW)
def test_a_branch_only_shows(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_what_is_loaded(monkeypatch)
    decided = run(program, tmp_path, is_main=True)
    assert decided
    assert not any(decided), program


@pytest.mark.parametrize("program", BRANCHES_THAT_DECIDE)
def test_a_branch_decides(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_what_is_loaded(monkeypatch)
    assert run(program, tmp_path, is_main=True)[0], program


@pytest.fixture(params=["package", "torch"])
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    """An installed package that the program can import, or a module of torch."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "package", ModuleType("package"))  # restored
    del sys.modules["package"]
    if request.param == "torch":
        monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(folder)])


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("use", OF_PACKAGES_DECIDES)
def test_what_a_package_returns_decides(use: str, tmp_path: Path) -> None:
    assert run(f"import package\n{use}", tmp_path)[0], use


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("use", OF_PACKAGES_SHOWN)
def test_what_a_package_returns_is_shown(use: str, tmp_path: Path) -> None:
    decided = run(f"import package\n{use}", tmp_path)
    assert decided
    assert not any(decided), use


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("program", IN_OTHER_FILES)
def test_it_decides_in_another_file(program: str, tmp_path: Path) -> None:
    assert run(program, tmp_path)[0], program


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("program", SHOWN_IN_OTHER_FILES)
def test_it_is_only_shown_in_another_file(program: str, tmp_path: Path) -> None:
    decided = run(program, tmp_path)
    assert decided
    assert not any(decided), program


COMPARES = PARTS.splitlines().index("        if loss < self.best:") + 1
NAMED = [
    ("x = w.item()\nif (x >\n  3): pass", "the condition at program.py:2"),
    ("while w.item() > 3: pass", "the condition at program.py:1"),
    ("x = w.item()\nassert not x", "the condition at program.py:2"),
    ("x = w.item()\n[3 for _ in [4] if x > 3]", "the condition at program.py:2"),
    ("x = w.item()\nmatch x:\n    case 3: pass", "the condition at program.py:2"),
    (
        "steps = filter(\n  lambda n: n < w.item(), [1])\nlist(steps)",
        "the condition at program.py:1",
    ),
    ("x = w.item()\nn = int(x)", "the conversion to an integer at program.py:2"),
    ("x = w.item()\nn = round(x)", "the conversion to an integer at program.py:2"),
    ("x = w.cpu().long()\nif False:\n    y = [4][x]", "the index at program.py:3"),
    ("x = w.item()\ny = [4, 5][: x > 3]", "the index at program.py:2"),
    ("x = w.item()\ny = range(3 if x > 3 else 4)", "the size at program.py:2"),
    ("def low(x):\n    return x < 3\nif low(w.item()): pass", "the condition at program.py:3"),
    ("def low(x):\n    if x < 3: pass\nlow(w.item())", "the condition at program.py:2"),
    (
        "from parts import Stopper\nStopper().step(w.item())",
        f"the condition at parts.py:{COMPARES}",
    ),
    ("import parts\nif parts.Reader(w).loss > 3: pass", "the condition at program.py:2"),
]


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(("program", "named"), NAMED)
def test_what_it_reaches_is_named(program: str, named: str, tmp_path: Path) -> None:
    assert number_of(program, tmp_path).reached[0] == named, program


OF_INTEGERS = [
    ("if w: pass", "the condition at program.py:1"),
    ("x = 3\nif not (w > 3) and x:\n    print(x)", "the condition at program.py:2"),
    ("x = 3\nwhile x > 4 or w:\n    print(x)\n    break", "the condition at program.py:2"),
    ("assert not w, str(3)", "the condition at program.py:1"),
    ("if w > 3 > 4:\n    pass\nelif w:\n    print(3)", "the condition at program.py:1"),
    ("x = not w\nif x: pass", "the condition at program.py:2"),
    ("x = w or 4\nprint(x)", ""),
    ("x = 3 if w else 4\nprint(x)", "the condition at program.py:1"),
    ("n = w.item()\nx = 1 / n if n > 0 else 0\nprint(x)", "the condition at program.py:2"),
    ("n = w.item()\nx = 1 / n if n > 0 else 0\nif x > 3: pass", "the condition at program.py:3"),
    ("x = 3 if w else 4\nif x > 3: pass", "the condition at program.py:2"),
    ("n = w.item()\nx = math.sin(n)\nif n > 3: pass", "the condition at program.py:3"),
    ("n = int(w.item())\ny = range(int(n))", "the size at program.py:2"),
    ("n = w.item()\nif False:\n    y = [4, 5][n]", "the index at program.py:3"),
    ("counts = w.cpu()\nn = counts.item()\nif n > 3: pass", "the condition at program.py:3"),
    ("for n in w.tolist():\n    y = [4, 5][:int(n)]", "the index at program.py:2"),
    ("n = w.item()\nprint(n, int(n), round(n), n / 3)", ""),
]


@pytest.mark.parametrize(("program", "named"), OF_INTEGERS)
def test_what_integers_reach_is_named(
    program: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Number, "integers", True)
    assert number_of(program, tmp_path).reached[0] == named, program


def test_a_function_is_looked_at_once_for_each_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    run_within = _follow.Follow.run

    def count(follow: _follow.Follow, parts: Iterable[_held.Part]) -> object:
        looked_at.append(getattr(follow._within, "name", ""))
        return run_within(follow, parts)

    monkeypatch.setattr(_follow.Follow, "run", count)
    reads = "show(w.item(), 1)\n" * 5 + "show(1, w.item())\n" * 5
    run(f"def show(a, b): print(a, b)\nfor _ in range(9):\n{indent(reads, '    ')}", tmp_path)
    assert looked_at.count("show") == 2
    assert looked_at.count("") == 10


def test_a_read_looks_at_the_program_and_its_variables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time for many branches grows with the square of their number, or more."""
    leave_out_what_is_loaded(monkeypatch)
    programs, scopes = [], []
    branches_around, scope = _follow.branches_around, _variables.Variables.scope

    def count_programs(frame: Any) -> Any:
        programs.append(frame)
        return branches_around(frame)

    def count_scopes(variables: Any, node: Any) -> Any:
        scopes.append(node)
        return scope(variables, node)

    monkeypatch.setattr(_follow, "branches_around", count_programs)
    monkeypatch.setattr(_variables.Variables, "scope", count_scopes)
    branches = "".join(f"elif loss < {n}: best = loss\n" for n in range(50))
    program = f"best, loss = 0.0, w.item()\nif loss < 0: best = loss\n{branches}print(best)"
    assert run(program, tmp_path, is_main=True) == [False]
    assert len(programs) <= 2
    assert len(scopes) <= 4 * len(program.split())


def test_a_search_that_takes_long_ends_unsure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_follow, "MAX_PARTS", 100)
    (reached,) = number_of("x = w.item()\n" + "x = x + 1\n" * 50, tmp_path).reached
    assert reached == "more of the program than the search of its source covers"


def test_a_name_that_is_bound_often_is_followed_to_its_end(tmp_path: Path) -> None:
    assert run("x = w.item()\n" + "x = x + 1\n" * 1_100, tmp_path) == [False]


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(("lines", "decided"), [(1_000, True), (10, False)])
def test_it_parses_no_more_than_so_many_lines_for_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, decided: bool
) -> None:
    monkeypatch.setattr(_sources, "MAX_LINES", lines)
    program = "import parts\ndef fit(stopper): stopper.step(w.item())\nfit([parts.Stopper()][0])"
    assert run(program, tmp_path) == [decided]


@pytest.mark.usefixtures("parts")
def test_a_file_that_only_has_the_word_is_not_parsed(tmp_path: Path) -> None:
    module = tmp_path / "other.py"
    module.write_text("get = 3\nx = [get, 'get']\n")
    program = "import parts, other\ndef get():\n    yield w.item()\nfor x in get(): print(x)"
    try:
        assert run(program, tmp_path) == [False]
    finally:
        sys.modules.pop("other", None)
    assert str(module) not in {file for file, _ in _sources._sources}


# What one search leaves out because it has looked at it already, a later one looks at.
SEARCHED_BEFORE = [
    # Two arguments that one method or function puts into the same object of its caller.
    """\
class Box: pass
def put(box, a, b):
    d = box.d
    d["k"] = a
    d["k"] = b
def new(d):
    box = Box()
    box.d = d
    return box
shown, first, second = new({}), new({}), new({})
x = w.item()
put(shown, x, x)
print(shown.d)
put(first, w.item(), 0)
if first.d["k"] > 3: pass
put(second, 0, w.item())
if second.d["k"] > 3: pass
""",
    """\
def put(box, a, b):
    for each in box:
        each.append(a)
        each.append(b)
shown, first, second = [[]], [[]], [[]]
x = w.item()
put(shown, x, x)
print(shown)
put(first, w.item(), 0)
if first[0][0] > 3: pass
put(second, 0, w.item())
if second[0][1] > 3: pass
""",
]


@pytest.mark.parametrize("program", SEARCHED_BEFORE)
def test_an_argument_is_followed_into_an_object_that_another_search_has_seen(
    program: str, tmp_path: Path
) -> None:
    assert run(program, tmp_path) == [False, True, True]


# The number itself reaches a file, and then so does the argument of a function.
FILES_BEFORE = [
    ("import json\ndef keep(v): json.dump(v, open(path, 'w'))", "json.dump(x, open(path, 'w'))",
     "import json\ndef check(path):\n    if json.load(open(path)) > 3: pass\n"),
    ("from seen import Stop\ndef keep(v):\n    try: raise Stop(v)\n    except Exception: pass",
     "try: raise Stop(x)\nexcept Exception: pass",
     "class Stop(Exception): pass\ndef check(path):\n    try: pass\n"
     "    except Stop as error:\n        if error.args[0] > 3: pass\n"),
]  # fmt: skip


@pytest.mark.parametrize(("keep", "use", "module"), FILES_BEFORE)
def test_an_argument_is_followed_to_a_file_that_the_same_search_has_seen(
    keep: str, use: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seen.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    program = f"import seen\n{keep}\nx = w.item()\nkeep(x)\n{use}\nkeep(w.item())\nseen.check"
    try:
        assert run(program, tmp_path) == [True, True]
    finally:
        sys.modules.pop("seen", None)


def test_threads_search_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    together = []
    use_at = _float_uses._use_at

    def search(*arguments: Any) -> object:
        searches.append(arguments)
        time.sleep(0.02)
        together.append(len(searches))
        searches.pop()
        return use_at(*arguments)

    monkeypatch.setattr(_float_uses, "_use_at", search)
    file = tmp_path / "program.py"
    program = "".join(f"def f{n}():\n    if w.item() > 3: pass\n" for n in range(4))
    file.write_text(program)
    number = Number()
    variables: dict[str, Any] = {"w": number}
    exec(compile(program, str(file), "exec"), variables)
    threads = [threading.Thread(target=variables[f"f{n}"]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number.decided == [True] * 4
    assert together == [1] * 4


def test_a_forked_child_does_not_wait_for_a_search_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(("count", "unsure"), [(30, False), (500, True)])
def test_a_chain_of_too_many_functions_ends_unsure(
    tmp_path: Path, count: int, unsure: bool
) -> None:
    calls = "".join(f"def f{n}(x): f{n - 1}(x)\n" for n in range(1, count))
    program = f"def f0(x): print(x)\n{calls}f{count - 1}(w.item())"
    assert run(program, tmp_path) == [unsure]


@pytest.mark.parametrize("text", CHANGED.values(), ids=CHANGED.keys())
def test_a_file_that_is_not_the_program_is_taken_to_show_it(
    text: bytes | None, tmp_path: Path
) -> None:
    assert run("if w.item() > 3: pass", tmp_path, text) == [False]


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<ipython-input-1-0>", "", "no\nfile"])
def test_a_program_without_its_source_is_taken_to_show_it(file: str) -> None:
    number = Number()
    exec(compile("if w.item() > 3: pass", file, "exec"), {"w": number})
    assert number.decided == [False]


def test_source_that_only_a_loader_has_is_followed(tmp_path: Path) -> None:
    program = "if w.item() > 3: pass"

    class Loader:
        def get_source(self, name: str) -> str:
            return program

    number = Number()
    code = compile(program, str(tmp_path / "in_an_archive.py"), "exec")
    exec(code, {"w": number, "__name__": "x", "__loader__": Loader()})
    assert number.decided == [True]


@pytest.mark.parametrize("error", [KeyError, RecursionError, MemoryError, AttributeError])
def test_no_failure_reaches_the_program(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> object:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(_float_uses, "source_of", fail)
        assert run("if w.item() > 3: pass", tmp_path) == [False]

    class Loader:
        get_source = fail

    number = Number()
    code = compile("if w.item() > 3: pass", str(tmp_path / "in_an_archive.py"), "exec")
    exec(code, {"w": number, "__name__": "x", "__loader__": Loader()})
    assert number.decided == [False]


def test_a_read_in_deep_recursion_fails_as_without_it(tmp_path: Path) -> None:
    program = "def deep(n):\n    w.item()\n    return deep(n + 1)\n"
    program += "try:\n    deep(0)\nexcept RecursionError:\n    print('end')"
    assert not any(run(program, tmp_path))


def test_warnings_of_the_source_are_not_repeated(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = "x = '\\d'\nif w.item() > 3: pass"
        code = compile(program, str(tmp_path / "program.py"), "exec")
    (tmp_path / "program.py").write_text(program)
    number = Number()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, {"w": number})
    assert number.decided == [True]


UNKNOWN = """\
import math, torch
weights = torch.randn(2048, 2048, device="cuda")
w = (weights @ weights)[0, 0]
"""
SAME_LINE = "a conversion to an integer or a condition in the same line"
USES = [
    "n = w.cpu().long().item()\nx = range(n)",
    "n = int(w.item())\nx = range(n)",
    "n = math.ceil(w)\nx = range(n)",
    "x = torch.arange(w)",
    "best = min(9.0, w.item())\nif best < 3: pass",
    "h = torch.empty(1)\nh[0].copy_(w)\nif h > 3: pass",
    "h = torch.empty(1, pin_memory=True)\nh.copy_(w, non_blocking=True)\n"
    "n = range((h > 3).sum().item())",
    "h = torch.empty(3)\nh[1] = w\nif h.mean() > 3: pass",
    "for loss in map(float, [w]):\n    if loss > 3: pass",
    "def read():\n    yield w.item()\nfor loss in read():\n    if loss > 3: pass",
    f"{STOPPER}            weights.sum()\ndef fit(stopper): stopper.step(w.item())\nfit(Stopper())",
    """\
class Model(torch.nn.Module):
    def forward(self, x):
        self.mean = x.item()
    @property
    def is_good(self):
        return self.mean < 3
model = Model()
model(w)
if model.is_good: pass
""",
]


@pytest.mark.parametrize("use", USES)
def test_a_number_that_decides_qualifies_the_verdict(simulate: Simulate, use: str) -> None:
    done, result = simulate(UNKNOWN + use)
    assert done.returncode == 13, done.stderr
    (read,) = result["uncomputed"]
    # PyTorch itself makes an integer or a branch of the number in `int(w)` and `not w`.
    of_torch = re.search(
        r"\b(int|bool)\(w\)|\b(if|while|not|assert|and|or) w\b(?!\.)|\bw (and|or|if)\b", use
    )
    assert read["learned"] == ("integer" if of_torch else "float")
    named = r"the (condition|size|conversion to an integer) at train\.py:\d+"
    assert re.fullmatch(f"{named}|{SAME_LINE}", read["reached"])
    assert (
        f"a number or a boolean, computed from zeros; it reached {read['reached']}\n" in done.stderr
    )


REACHES_MANY = """\
def value(t):
    return t.item()
def step(loss):
    if loss < 3: kept.append(w + 1)
loss, other, kept = value(w), value(w), []
if loss > 3: kept.append(w + 1)
while loss > 30: loss -= 1
torch.empty(int(loss) + 1)
step(other)
if other > 4: kept.clear()
for _ in range(2):
    print(loss)
"""


def test_a_report_names_all_that_a_number_reaches(simulate: Simulate) -> None:
    done, result = simulate(UNKNOWN + REACHES_MANY)
    before = UNKNOWN.count("\n")
    places = [f"train.py:{before + line}" for line in (4, 6, 7, 8, 10)]
    (read,) = result["uncomputed"]
    found = [read["reached"], *read["also_reached"]]
    assert sorted(each.rpartition(" ")[2] for each in found) == sorted(places), found
    condition = "the condition at"
    assert (
        f"computed from zeros; it reached {condition} {places[0]}, {condition} {places[1]}, "
        f"{condition} {places[2]}, the conversion to an integer at {places[3]} and 1 more\n"
    ) in done.stderr


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("random.sample(kept, 2)", "condition"),
        ("random.sample(kept, k=2)", "condition"),
        ("random.sample(population=kept, k=2)", "condition"),
        ("random.Random(3).sample(tuple(kept), 2)", "condition"),
        ("random.sample(range(4), 1 + kept[0])", "size"),
        ("torch.distributions.Normal(0.0, 1.0).sample(kept)", "size"),
    ],
)
def test_what_a_sample_is_chosen_from_is_no_size(simulate: Simulate, call: str, what: str) -> None:
    program = f"import random\nkept = 2 * [(w > 3).item()]\nfor n in {call}:\n    if n == 1: pass\n"
    _, result = simulate(UNKNOWN + program)
    (read,) = result["uncomputed"]
    assert read["reached"].startswith(f"the {what} at train.py:"), read


def test_the_search_for_all_that_a_number_reaches_is_short(simulate: Simulate) -> None:
    program = "loss = w.item()\n" + "if loss > 3: kept = w + 1\n" * 400
    done, result = simulate(UNKNOWN + program)
    (read,) = result["uncomputed"]
    assert len(read["also_reached"]) == 19
    assert " and 16 more\n" in done.stderr


SHOWN_AS_INTEGERS = [
    "print(int(w), 'of', 9)",
    "print(f'{int(w.item())} {round(100 * w.item())} % {math.ceil(w)}')",
    "right = 0\nfor step in range(3):\n    right += int(w)\nprint(100 * right / 9)",
    "right = 0\nfor step in range(3):\n    right += round(float(w))\nprint(right)",
    "print(w.long().item(), w.cpu().long().item())",
    "def rounded(x): return int(100 * x) / 100\nlog = {'loss': rounded(w.item())}\nprint(log)",
    "drawn = torch.zeros(2048, device='cuda').scatter_(0, weights[0].topk(9).indices, 1)\n"
    "print(int(drawn.sum()))",
]


@pytest.mark.parametrize("use", SHOWN_AS_INTEGERS)
def test_integers_of_numbers_that_are_only_shown_make_no_verdict_unsure(
    simulate: Simulate, use: str
) -> None:
    done, result = simulate(UNKNOWN + use)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr


LOOP = """\
losses = []
for step in range(3):
    losses.append(w.item())
    if step % 2 == 0:
        print(f"{step} {losses[-1]:.3f} {sum(losses) / len(losses)} {w.cpu()}")
history = {"loss": losses[-1], "steps": len(losses)}
if history["steps"] > 2 and not math.isnan(history["loss"]):
    print(history)
"""


METERS = f"""\
{METER}
import json, logging
class Board:
    def log(self, logs, step):
        for name, value in logs.items():
            logging.warning("%s at %d: %.3f", name, step, value)
def train(scheduler, board):
    losses = Meter()
    for step in range(3):
        losses.update(w.item(), 4)
        scheduler.step(w.item())
        scheduler.step(w)
        board.log({{"loss": w.item()}}, step)
        print(json.dumps({{"loss": losses.average, "step": step}}))
    if losses.count > 3:
        print(losses)
    return losses.average
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
print(train(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), Board()))
"""


@pytest.mark.parametrize("loop", [LOOP, METERS], ids=["lists", "meters"])
def test_a_loop_that_shows_its_loss_fits(simulate: Simulate, loop: str) -> None:
    done, result = simulate(UNKNOWN + loop)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert {read["learned"] for read in result["uncomputed"]} == {"float"}


SCALER = """\
import torch
model = torch.nn.Linear(2048, 2048).cuda()
x = torch.randn(2048, 2048, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rates = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    scale = scaler.get_scale()
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print(scale)
"""


@pytest.mark.parametrize(
    ("use", "reached"),
    [
        ("print(scaler.get_scale())", ""),
        ("if scaler.get_scale() < scale: print('skipped')", ""),
        ("if scaler.get_scale() >= scale: rates.step()", ""),
        ("if scaler.get_scale() < scale: x.sum()", "the condition at train.py:13"),
        ("is_less = scaler.get_scale() < scale\n    while is_less: break", "the condition at "),
        ("steps = range(int(scaler.get_scale()))", "the conversion to an integer at train.py:13"),
    ],
)
def test_what_torch_reads_for_the_program_may_decide(
    simulate: Simulate, use: str, reached: str
) -> None:
    done, result = simulate(f"{SCALER}    {use}")
    wanted = (13, "fits as far as known") if reached else (0, "fits")
    assert (done.returncode, result["verdict"]) == wanted, done.stderr
    found = {read["reached"] for read in result["uncomputed"]} - {""}
    assert len(found) == bool(reached)
    assert all(each.startswith(reached) for each in found)
