"""The recipes of docs/reinforcement-learning.md. Prints the device's memory at each step, in MiB.

Argument: `one` or `two` for the number of processes.
"""

import json
import os
import subprocess
import sys

import torch

import ferro_alloc
from ferro_alloc.memory_saver import torch_memory_saver as saver

MIB = 1 << 20
WEIGHTS, CACHE, ACTIVATIONS = 20, 80, 60


def used():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def filled(mib, value):
    return torch.full((mib * MIB // 4,), value, dtype=torch.int32, device="cuda")


def holds(tensor, value):
    return bool((tensor == value).all())


class Trainer:
    """Parameters and the states of an optimizer, which count its steps."""

    def __init__(self):
        self.weights, self.states = filled(WEIGHTS, 0), [filled(WEIGHTS, 0) for _ in range(2)]
        self.steps = 0

    def step(self):
        activations = filled(ACTIVATIONS, 1)
        self.steps += 1
        for memory in (self.weights, *self.states):
            memory.add_(activations[: memory.numel()])

    def is_right(self):
        return all(holds(memory, self.steps) for memory in (self.weights, *self.states))


def one():
    with saver.region("trainer", enable_cpu_backup=True):
        trainer = Trainer()
    with saver.region("weights", enable_cpu_backup=True):
        weights = filled(WEIGHTS, 0)
    with saver.region("cache"):
        cache = filled(CACHE, 0)
    saver.pause("weights")
    saver.pause("cache")
    seen, good = [], []
    for step in range(1, 4):
        trainer.step()
        seen.append(used())
        saver.resume("weights")
        weights.copy_(trainer.weights)
        seen.append(used())
        saver.pause("trainer")
        saver.resume("cache")
        cache.fill_(step)
        good += [holds(weights, step), holds(cache, step)]
        seen.append(used())
        saver.pause("cache")
        saver.pause("weights")
        saver.resume("trainer")
        good.append(trainer.is_right())
    return {"used": seen, "good": all(good)}


def other_process(turn):
    """The engine, which waits for lines of the trainer."""
    weights, cache = filled(WEIGHTS, 7), filled(CACHE, 8)
    ferro_alloc.sleep()
    print("asleep", flush=True)
    for line in sys.stdin:
        if line.strip() == "early":
            try:
                ferro_alloc.wake()
            except torch.OutOfMemoryError as error:
                print("missing" in str(error), flush=True)
            continue
        ferro_alloc.wake()
        good = holds(weights, 7) and holds(cache, 8)
        in_turn = used()
        ferro_alloc.sleep()
        print(json.dumps([good, in_turn]), flush=True)


def two():
    trainer = Trainer()
    trainer.step()
    ferro_alloc.sleep()
    program = (
        "import sys; from ferro_alloc.sim import _activate; _activate.inherit(); "
        f"sys.argv = ['recipes.py', 'engine']; import runpy; runpy.run_path({__file__!r}, "
        "run_name='__main__')"
    )
    pipe = subprocess.PIPE
    engine = subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True, env=dict(os.environ)
    )

    def ask(word):
        engine.stdin.write(word + "\n")
        engine.stdin.flush()
        return json.loads(engine.stdout.readline().lower())

    assert engine.stdout.readline().strip() == "asleep"
    seen, good = [], []
    for _ in range(3):
        ferro_alloc.wake()
        trainer.step()
        good.append(trainer.is_right())
        large = filled(80, 1)
        seen.append(used())
        good.append(ask("early"))
        del large
        ferro_alloc.sleep()
        right, in_turn = ask("turn")
        good.append(right)
        seen += [in_turn, used()]
    engine.stdin.close()
    return {"used": seen, "good": all(good), "status": engine.wait()}


ferro_alloc.install()
match sys.argv[1]:
    case "one":
        print(json.dumps(one()))
    case "two":
        print(json.dumps(two()))
    case _:
        other_process(sys.argv[1])
