"""What PyTorch's settings say of the memory while allocators change. Prints it as JSON."""

import json
import sys

import torch

import ferro_alloc


def said():
    return torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]


def say(settings):
    torch._C._accelerator_setAllocatorSettings(settings)


when = {"at first": said()}
ferro_alloc.install()
when["installed"] = said()
ferro_alloc.uninstall()
when["uninstalled"] = said()
torch.ones(1, device="cuda")
ferro_alloc.install()
when["installed late"] = said()
say("roundup_power2_divisions:4")
when["other settings changed"] = said()
divisions = torch.cuda.memory._snapshot()["allocator_settings"]["roundup_power2_divisions"]
ferro_alloc.uninstall()
when["uninstalled again"] = said()
ferro_alloc.install()
assert (
    divisions == torch.cuda.memory._snapshot()["allocator_settings"]["roundup_power2_divisions"]
), "other settings stay"
say("expandable_segments:False")
when["the program said no"] = said()
ferro_alloc.uninstall()
ferro_alloc.install()
when["its word counts"] = said()
json.dump(when, sys.stdout)
