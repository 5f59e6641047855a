"""Where the source of a program takes a floating-point number that it reads."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from ferro_alloc.sim._float_uses import decides
from tests.python.sim.conftest import Simulate

DECIDES = [
    "if w.item() > 3: pass",
    "while w.item() > 3: break",
    "assert w.item() < 9",
    "x = 1 if w.item() > 0 else 2",
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
    "match w.item():\n    case 0.0: pass",
    "match 3:\n    case n if n > w.item(): pass",
    "def mean(x):\n    return x.item() / 2\nif mean(w) > 3: pass",
    "def both(x):\n    return x.item(), 3\nloss, n = both(w)\nif loss > 3: pass",
    "if (lambda x: x.item())(w) > 3: pass",
    "class Best:\n    def put(self): self.best = w.item()\n"
    "    def is_bad(self): return 1 if self.best > 3 else 0\nBest().put()",
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
    "logs = {}\nlogs.setdefault('loss', w.item())\nif logs['loss'] > 3: pass",
    "losses = [1.0]\nlosses += [w.item()]\nif losses[1] > 3: pass",
    "losses = [1.0] + [w.item()]\nif losses[1] > 3: pass",
    "losses = [*[1.0, 2.0], w.item()]\nif losses[2] > 3: pass",
    "losses = (1.0, w.item())[1:]\nif losses[0] > 3: pass",
    "best = 9.0\ndef step():\n    global best\n    best = w.item()\nstep()\nif best > 3: pass",
    "def fit():\n    best = 9.0\n    def step():\n        nonlocal best\n"
    "        best = w.item()\n    step()\n    if best > 3: pass\nfit()",
    "w.item() > 3 and print('low')",
    "logs = {'loss': w.item()}\nif logs.get('loss') > 3: pass",
    "n = (w.cpu() > 3).item()",
]
SHOWN = [
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
]


class Number:
    """A stand-in for a tensor of one floating-point number on the device."""

    shape = (1,)

    def __init__(self) -> None:
        self.decided: list[bool] = []

    def item(self) -> float:
        self.decided.append(decides(sys._getframe(1)))
        return 0.0

    def cpu(self) -> Number:
        self.decided.append(decides(sys._getframe(1)))
        return Number()

    def tolist(self) -> list[float]:
        return [self.item_of(sys._getframe(1))]

    def __float__(self) -> float:
        return self.item_of(sys._getframe(1))

    def item_of(self, frame: object) -> float:
        self.decided.append(decides(frame))  # type: ignore[arg-type]
        return 0.0

    def long(self) -> Number:
        return self

    argmax = float = long

    def __gt__(self, other: object) -> Number:
        return self


def run(program: str, folder: Path) -> list[bool]:
    file = folder / "program.py"
    file.write_text(program)
    number = Number()
    exec(compile(program, str(file), "exec"), {"w": number, "math": math})
    return number.decided


@pytest.mark.parametrize("program", DECIDES)
def test_it_decides(program: str, tmp_path: Path) -> None:
    assert run(program, tmp_path)[0], program


@pytest.mark.parametrize("program", SHOWN)
def test_it_is_only_shown(program: str, tmp_path: Path) -> None:
    decided = run(program, tmp_path)
    assert decided
    assert not any(decided), program


def test_a_program_without_its_source_is_taken_to_show_it() -> None:
    number = Number()
    exec("if w.item() > 3: pass", {"w": number})
    assert number.decided == [False]


UNKNOWN = """\
import math, torch
weights = torch.randn(2048, 2048, device="cuda")
w = (weights @ weights)[0, 0]
"""
USES = [
    "n = w.cpu().long().item()",
    "n = int(w.item())",
    "n = math.ceil(w)",
    "x = torch.arange(w)",
    "best = min(9.0, w.item())\nif best < 3: pass",
    "h = torch.empty(1)\nh[0].copy_(w)\nif h > 3: pass",
    "h = torch.empty(1, pin_memory=True)\nh.copy_(w, non_blocking=True)\nn = (h > 3).sum().item()",
    "h = torch.empty(3)\nh[1] = w\nif h.mean() > 3: pass",
]


@pytest.mark.parametrize("use", USES)
def test_a_number_that_decides_qualifies_the_verdict(simulate: Simulate, use: str) -> None:
    done, result = simulate(UNKNOWN + use)
    assert done.returncode == 13, done.stderr
    assert [read["learned"] for read in result["uncomputed"]] == ["integer"]


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


def test_a_loop_that_shows_its_loss_fits(simulate: Simulate) -> None:
    done, result = simulate(UNKNOWN + LOOP)
    assert (done.returncode, result["verdict"]) == (0, "fits"), done.stderr
    assert {read["learned"] for read in result["uncomputed"]} == {"float"}
