"""Where the source of a program takes a number through its objects: base classes, special methods,
context managers, descriptors, exceptions and learning rates."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ferro_alloc.sim import _sources
from tests.python.sim.conftest import leave_out_what_is_loaded
from tests.python.sim.test_float_uses import Number

DECIDES = {
    "ctx class": """\
class Reading:
    def __enter__(self):
        return w.item()
    def __exit__(self, *e): pass
with Reading() as n:
    while n > 3: break
""",
    "ctx class field value": """\
class Reading:
    def __init__(self, x): self.x = x
    def __enter__(self):
        return self.x
    def __exit__(self, *e): pass
with Reading(w.item()) as n:
    while n > 3: break
""",
    "closing": """\
import contextlib
class R:
    def __init__(self): self.x = w.item()
    def close(self): pass
with contextlib.closing(R()) as r:
    if r.x > 3: pass
""",
    "nullcontext": """\
import contextlib
with contextlib.nullcontext(w.item()) as n:
    if n > 3: pass
""",
    "descriptor set decides": """\
class Number:
    def __set__(self, obj, value):
        if value > 3: pass
class T:
    loss = Number()
t = T()
t.loss = w.item()
""",
    "property call field": """\
class T:
    def put(self, x): self._x = x
    def get(self): return self._x * 2
    loss = property(get)
t = T()
t.put(w.item())
if t.loss > 3: pass
""",
    "property lambda": """\
class T:
    def put(self, x): self._x = x
    loss = property(lambda self: self._x)
t = T()
t.put(w.item())
if t.loss > 3: pass
""",
    "plateau": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.item())
if s.get_last_lr()[0] < 1e-6: pass
""",
    "plateau optimizer": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.item())
if o.param_groups[0]["lr"] < 1e-6: pass
""",
    "plateau group loop": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
def train():
    for epoch in range(3):
        s.step(w.item())
        for group in o.param_groups:
            lr = group["lr"]
            if lr < 1e-6: return
train()
""",
    "plateau bad epochs": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.item())
if s.num_bad_epochs > 3: pass
""",
    "plateau best": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.item())
if s.best > 3: pass
""",
    "plateau attr": """\
import torch
class T:
    def __init__(self):
        self.o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        self.s = torch.optim.lr_scheduler.ReduceLROnPlateau(self.o)
    def step(self):
        self.s.step(w.item())
    def done(self):
        return self.o.param_groups[0]["lr"] < 1e-6
t = T()
t.step()
if t.done(): pass
""",
    "callbacks by name": """\
class Stop:
    def after_step(self, loss):
        if loss > 3: pass
class T:
    def __init__(self, hooks): self.hooks = hooks
    def fire(self, event, *args, **kwargs):
        for h in self.hooks:
            fn = getattr(h, event, None)
            if fn is not None:
                fn(*args, **kwargs)
T([Stop()]).fire("after_step", loss=w.item())
""",
    "generator send decides inside": """\
def stopper():
    while True:
        x = yield
        if x > 3: pass
a = stopper(); next(a)
a.send(w.item())
""",
    "raise loss": """\
class Diverged(Exception):
    def __init__(self, loss): self.loss = loss
try:
    raise Diverged(w.item())
except Diverged as e:
    if e.loss > 3: pass
""",
    "raise loss args": """\
try:
    raise ValueError(w.item())
except ValueError as e:
    if e.args[0] > 3: pass
""",
    "class attribute via self": """\
class State:
    best = 9.0
    def put(self, loss): State.best = loss
    def done(self): return self.best < 3
s = State()
s.put(w.item())
if s.done(): pass
""",
    "inheritance super": """\
class Base:
    def __init__(self): self.history = []
    def log(self, loss): self.history.append(loss)
class Trainer(Base):
    def step(self):
        super().log(w.item())
    def should_stop(self): return self.history[-1] < 0.1
t = Trainer(); t.step()
if t.should_stop(): pass
""",
    "template method": """\
class Base:
    def fit(self):
        for i in range(3):
            loss = self.training_step()
            self.on_loss(loss)
    def on_loss(self, loss): pass
class T(Base):
    def training_step(self): return w.item()
    def on_loss(self, loss):
        if loss > 3: pass
T().fit()
""",
    "itertools takewhile": """\
import torch
from itertools import takewhile
losses = [w.item() for _ in range(3)]
good = list(takewhile(lambda x: x < 3, losses))
torch.zeros(len(good))
""",
    "top k checkpoints": """\
import torch
kept = []
for i in range(3):
    loss = w.item()
    kept.append((loss, i))
    kept.sort()
    if len(kept) > 2:
        worst = kept.pop()
        torch.zeros(worst[1])
""",
    "contains": """\
class Window:
    def __init__(self): self.v = 0.0
    def put(self, x): self.v = x
    def __contains__(self, x): return x > self.v
w2 = Window(); w2.put(w.item())
if 3 in w2: pass
""",
    "bool special": """\
class Stop:
    def __init__(self): self.v = 0.0
    def put(self, x): self.v = x
    def __bool__(self): return self.v > 3
s = Stop(); s.put(w.item())
if s: pass
""",
    "len special": """\
import torch
class Stop:
    def __init__(self): self.v = 0.0
    def put(self, x): self.v = x
    def __len__(self): return 3 if self.v > 3 else 4
s = Stop(); s.put(w.item())
torch.zeros(len(s))
""",
    "iter next class": """\
import torch
class Lengths:
    def __init__(self): self.loss, self.n = 9.0, 8
    def __iter__(self): return self
    def __next__(self):
        if self.loss < 1: raise StopIteration
        return self.n
l = Lengths()
for n in l:
    torch.zeros(n)
    l.loss = w.item()
""",
    "assign alias method": """\
class T:
    def put(self, x): self.loss = x
t = T()
put = t.put
put(w.item())
if t.loss > 3: pass
""",
    "dict of objects": """\
import torch
class Task:
    def __init__(self, n): self.n, self.loss = n, 0.0
tasks = {"a": Task(3), "b": Task(4)}
for t in tasks.values():
    t.loss = w.item()
worst = max(tasks.values(), key=lambda t: t.loss)
torch.zeros(worst.n)
""",
    "global in method": """\
STATE = {"loss": 9.0}
class T:
    def done(self): return STATE["loss"] < 3
STATE["loss"] = w.item()
if T().done(): pass
""",
    "global in property": """\
STATE = {"loss": 9.0}
class T:
    @property
    def done(self): return STATE["loss"] < 3
STATE["loss"] = w.item()
if T().done: pass
""",
    "mixin": """\
class LogMixin:
    def log(self, k, v):
        self.logs[k] = v
class StopMixin:
    def should_stop(self):
        return self.logs["loss"] < 0.1
class T(LogMixin, StopMixin):
    def __init__(self): self.logs = {}
    def fit(self):
        for i in range(3):
            self.log("loss", w.item())
            if self.should_stop(): break
T().fit()
""",
    "abstract property": """\
import torch
from abc import ABC, abstractmethod
class Sched(ABC):
    def __init__(self): self.losses = []
    @property
    @abstractmethod
    def length(self): ...
    def report(self, loss): self.losses.append(loss)
class Grow(Sched):
    @property
    def length(self): return 8 if not self.losses or self.losses[-1] > 1 else 16
def fit(s: Sched):
    for i in range(3):
        x = torch.zeros(s.length)
        s.report(w.item())
fit(Grow())
""",
    "subclass overrides hook, base calls": """\
class Base:
    def run(self):
        for i in range(3):
            self.loss = w.item()
            if self.finished(): break
    def finished(self): return False
class T(Base):
    def finished(self): return self.loss < 0.1
T().run()
""",
    "subclass generator": """\
class Base:
    def run(self):
        for loss in self.losses():
            if loss < 0.1: break
    def losses(self): raise NotImplementedError
class T(Base):
    def losses(self):
        for i in range(3): yield w.item()
T().run()
""",
    "observer method": """\
class Stop:
    def __init__(self): self.done = False
    def update(self, loss): self.done = loss < 0.1
class Subject:
    def __init__(self): self.obs = []
    def attach(self, f): self.obs.append(f)
    def notify(self, loss):
        for f in self.obs: f(loss)
stop, subject = Stop(), Subject()
subject.attach(stop.update)
for i in range(3):
    subject.notify(w.item())
    if stop.done: break
""",
    "dataclass post init": """\
import torch
from dataclasses import dataclass
@dataclass
class R:
    loss: float
    def __post_init__(self):
        self.size = 8 if self.loss > 3 else 4
r = R(w.item())
torch.zeros(r.size)
""",
    "ternary fn": """\
import torch
def big(): return torch.zeros(16)
def small(): return torch.zeros(8)
x = (big if w.item() > 3 else small)()
""",
    "dict filled by function kw": """\
def fill(*, out): out["loss"] = w.item()
out = {}
fill(out=out)
if out["loss"] > 3: pass
""",
    "buffer copy": """\
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("t", torch.zeros(1))
    def forward(self, x):
        if self.t.item() > 3: return torch.cat([x, x])
        return x
net = Net()
net.t.fill_(w.item())
net(torch.zeros(3))
""",
    "fill_ then mask": """\
import torch
t = torch.zeros(3)
t.fill_(w.item())
x = torch.zeros(3)[t > 3]
""",
    "mul_ then if": """\
import torch
t = torch.zeros(1)
t.add_(w.item())
if t > 3: pass
""",
    "filter none": """\
import torch
xs = list(filter(None, [w.item(), 3]))
torch.zeros(len(xs))
""",
    "groupby": """\
import torch
from itertools import groupby
xs = [w.item() for _ in range(3)]
for k, g in groupby(xs, key=lambda x: x > 3):
    torch.zeros(len(list(g)))
""",
    "lightning style": """\
import torch
class LightningModule(torch.nn.Module):
    def log(self, name, value): self.trainer.callback_metrics[name] = value
class Trainer:
    def __init__(self, callbacks=()):
        self.callback_metrics, self.callbacks, self.should_stop = {}, list(callbacks), False
    def fit(self, module):
        module.trainer = self
        for e in range(3):
            module.training_step(e)
            for c in self.callbacks: c.on_train_epoch_end(self, module)
            if self.should_stop: break
class EarlyStopping:
    def __init__(self, monitor): self.monitor, self.best = monitor, float("inf")
    def on_train_epoch_end(self, trainer, module):
        current = trainer.callback_metrics.get(self.monitor)
        if current < self.best: self.best = current
        else: trainer.should_stop = True
class Net(LightningModule):
    def training_step(self, batch): self.log("loss", w.item())
Trainer([EarlyStopping("loss")]).fit(Net())
""",
    "min models by loss": """\
import torch
class M:
    def __init__(self, n): self.n = n
    def run(self): torch.zeros(self.n)
models = [M(3), M(4)]
losses = {m: w.item() for m in models}
best = min(models, key=lambda m: losses[m])
best.run()
""",
    "random choices weights": """\
import torch, random
ws = [w.item() + 1 for _ in range(3)]
n = random.choices([3, 4, 5], weights=ws)[0]
torch.zeros(n)
""",
    "weighted sampler": """\
import torch
ws = [w.item() + 1 for _ in range(3)]
s = torch.utils.data.WeightedRandomSampler(ws, 3)
lengths = [3, 4, 5]
for i in s: torch.zeros(lengths[i])
""",
    "compress": """\
import torch
from itertools import compress
xs = list(compress([3, 4], [w.item() > 3, True]))
torch.zeros(len(xs))
""",
    "protocol annotated": """\
from typing import Protocol
class Sink(Protocol):
    def put(self, loss: float) -> None: ...
class Stopper:
    def put(self, loss):
        if loss < 3: pass
def fit(sink: Sink):
    sink.put(w.item())
fit(Stopper())
""",
    "delegate getattr": """\
class Inner:
    def put(self, loss):
        if loss < 3: pass
class Wrap:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return getattr(self.inner, name)
Wrap(Inner()).put(w.item())
""",
    "cm exit decides on stored": """\
class Phase:
    def __init__(self, name): self.name, self.loss = name, None
    def __enter__(self): return self
    def __exit__(self, *e):
        if self.loss > 3: pass
with Phase("x") as p:
    p.loss = w.item()
""",
    "an argument with the name of a variable": """\
class Wrapper:
    def __init__(self, env):
        self.env = env
    def step(self, action):
        return self.env.step(action)
class Env:
    step = staticmethod(float)
env = Wrapper(Env())
if env.step(w.item()):
    pass
""",
}
SHOWN = {
    "ctx gen shown": """\
from contextlib import contextmanager
@contextmanager
def reading():
    yield w.item()
with reading() as n:
    print(n)
""",
    "ctx class shown": """\
class Reading:
    def __enter__(self):
        return w.item()
    def __exit__(self, *e): pass
with Reading() as n:
    print(n)
""",
    "ctx gen tuple other": """\
from contextlib import contextmanager
@contextmanager
def reading():
    yield 3, w.item()
with reading() as (a, n):
    if a > 3: pass
""",
    "descriptor shown": """\
class Number:
    def __get__(self, obj, kind=None):
        return w.item()
class T:
    loss = Number()
t = T()
print(t.loss)
""",
    "plateau shown": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.item())
print(s.get_last_lr()[0], o.param_groups[0]["lr"])
""",
    "plateau only": """\
import torch
o = torch.optim.SGD([torch.zeros(1)], lr=0.1)
s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
s.step(w.item())
if o.param_groups: print(3)
""",
    "two meters": """\
class M:
    def __init__(self): self.x = 0
    def put(self, x): self.x = x
    def get(self): return self.x
a, b = M(), M()
a.put(w.item()); b.put(3)
if b.get() > 3: pass
print(a.get())
""",
    "two meters of one object": """\
class M:
    def __init__(self): self.x = 0
    def put(self, x): self.x = x
    def get(self): return self.x
class T:
    def __init__(self): self.a, self.b = M(), M()
    def step(self):
        self.a.put(w.item()); self.b.put(3)
        return self.b.get()
t = T()
if t.step() > 3: pass
""",
    "subclass hook shown": """\
class Base:
    def run(self):
        for i in range(3):
            self.loss = w.item()
            self.after()
    def after(self): pass
class T(Base):
    def after(self): print(self.loss)
T().run()
""",
    "event bus shown": """\
from collections import defaultdict
class Bus:
    def __init__(self): self.handlers = defaultdict(list)
    def on(self, event, f): self.handlers[event].append(f)
    def emit(self, event, *args):
        for f in self.handlers[event]: f(*args)
bus = Bus()
def show(loss): print(loss)
bus.on("loss", show)
for i in range(3):
    bus.emit("loss", w.item())
""",
    "logger class of base": """\
class Base:
    def log(self, k, v): raise NotImplementedError
class Console(Base):
    def log(self, k, v): print(k, v)
class Multi(Base):
    def __init__(self, loggers): self.loggers = loggers
    def log(self, k, v):
        for l in self.loggers: l.log(k, v)
l = Multi([Console()])
for i in range(3): l.log("loss", w.item())
""",
    "two classes same method other decides": """\
class Sched:
    def __init__(self): self.t = 0
    def step(self):
        self.t += 1
        if self.t > 5: pass
class Meter:
    def __init__(self): self.v = 0
    def step(self, v): self.v = v
s, m = Sched(), Meter()
for i in range(3):
    s.step(); m.step(w.item())
print(m.v)
""",
    "model base class": """\
import torch
class Base(torch.nn.Module):
    def log(self, k, v): self.logged[k] = v
    def training_step(self, x): raise NotImplementedError
class Net(Base):
    def __init__(self):
        super().__init__()
        self.logged = {}
        self.size = 4
    def training_step(self, x):
        self.log("loss", w.item())
        return torch.zeros(self.size)
net = Net()
net.training_step(3)
print(net.logged)
""",
    "raise with text": """\
try:
    loss = w.item()
    if loss != loss: raise RuntimeError(f"nan {loss}")
except RuntimeError as e:
    print(e)
""",
    "context timer": """\
import torch, time
class Timer:
    def __enter__(self):
        self.t = time.time(); return self
    def __exit__(self, *e): self.dt = time.time() - self.t
with Timer() as t:
    loss = w.item()
print(loss, t.dt)
if t.dt > 100: pass
""",
    "fields of a config class": """\
import torch
class Config:
    batch = 8
    loss = 0.0
Config.loss = w.item()
torch.zeros(Config.batch)
print(Config.loss)
""",
    "scale grads loop": """\
import torch
ps = [torch.zeros(3, requires_grad=True)]
for p in ps: p.grad = torch.zeros(3)
coef = min(1.0, 1.0 / (w.item() + 1e-6))
for p in ps:
    if p.grad is not None:
        p.grad.mul_(coef)
for p in ps:
    if p.grad is None: pass
    torch.zeros(p.shape)
""",
    "two subclasses one decides unused field": """\
class Base:
    def __init__(self): self.loss = 0; self.n = 3
    def fit(self):
        self.loss = w.item()
        self.after()
    def after(self): pass
class A(Base):
    def after(self): print(self.loss)
class B(Base):
    def after(self):
        if self.n > 5: pass
A().fit()
""",
    "object with len of list": """\
class History:
    def __init__(self): self.losses = []
    def __len__(self): return len(self.losses)
    def add(self, x): self.losses.append(x)
h = History()
for i in range(3):
    h.add(w.item())
    if len(h) > 5: break
""",
    "object iterated shown": """\
class History:
    def __init__(self): self.losses = []
    def __iter__(self): return iter(self.losses)
    def add(self, x): self.losses.append(x)
h = History()
for i in range(3): h.add(w.item())
for x in h: print(x)
""",
    "meter object truth": """\
class Meter:
    def __init__(self): self.v, self.n = 0.0, 0
    def __bool__(self): return self.n > 0
    def add(self, x): self.v += x; self.n += 1
m = Meter()
m.add(w.item())
if m: print(m.v)
""",
    "cm object shown": """\
class Phase:
    def __init__(self, name): self.name, self.loss = name, None
    def __enter__(self): return self
    def __exit__(self, *e): print(self.name, self.loss)
with Phase("x") as p:
    p.loss = w.item()
""",
}

BASE = """\
class Trainer:
    def fit(self):
        self.loss = w.item()
        self.show(self.loss)
        return self.is_done()
    def show(self, loss): print(loss)
    def is_done(self): return 0
"""
OF_A_FILE_DECIDES = [
    "    def is_done(self): return self.loss < 3",
    "    def show(self, loss):\n        if loss < 3: pass",
    "    @property\n    def size(self): return self.loss < 3\n"
    "    def is_done(self): return self.size",
    "    def is_done(self): return 3\n"
    "class Late(Mine):\n    def is_done(self): return self.loss < 3",
]


def run(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of a module, whose variables the search can see."""
    monkeypatch.setattr(_sources, "_sources", {})
    monkeypatch.setattr(_sources, "_searched", [])
    leave_out_what_is_loaded(monkeypatch)
    file = folder / "train.py"
    file.write_text(program)
    module = ModuleType("train")
    module.__dict__.update(w=(number := Number()), __file__=str(file))
    monkeypatch.setitem(sys.modules, "train", module)
    exec(compile(program, str(file), "exec"), module.__dict__)
    return number.decided


@pytest.mark.parametrize("name", DECIDES)
def test_it_decides(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(run(DECIDES[name], tmp_path, monkeypatch))


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_only_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = run(SHOWN[name], tmp_path, monkeypatch)
    assert decided
    assert not any(decided)


@pytest.mark.parametrize("lines", OF_A_FILE_DECIDES)
def test_a_method_of_a_derived_class_in_another_file_decides(
    lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.py").write_text("w = None\n" + BASE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "base", ModuleType("base"))  # restored
    del sys.modules["base"]
    made = "Late" if "Late" in lines else "Mine"
    program = f"import base\nbase.w = w\nclass Mine(base.Trainer):\n{lines}\n"
    assert run(f"{program}if {made}().fit(): pass", tmp_path, monkeypatch)[0]


RECURSION = """\
def f(x, n):
    return g(x, n) if n else x
def g(x, n): return f(x, n - 1)
print(f(w.item(), 2))
"""


@pytest.mark.parametrize(
    ("use", "decides"),
    [("if g(w.item(), 2) > 3: pass", True), ("print(g(w.item(), 2))", False)],
)
def test_a_function_in_a_cycle_of_calls_gives_all(
    use: str, decides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(RECURSION + use, tmp_path, monkeypatch) == [False, decides]
