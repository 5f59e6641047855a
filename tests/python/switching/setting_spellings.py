"""Settings in each spelling that PyTorch's parser knows, given while the program runs.

Prints as JSON whether each is accepted, what it means, and whether the allocator works afterwards.
The argument names the allocator: `native` or `ferro`.
"""

import json
import sys

import torch

import ferro_alloc

SPELLINGS = (
    "",
    " ",
    "max_split_size_mb:64",
    "max_split_size_mb:64,",
    "max_split_size_mb:64 , ",
    "max_split_size_mb:64,\t\n",
    " max_split_size_mb : 64 ",
    "max_split_ size_mb:6 4",
    "max_split_size_mb:64,max_split_size_mb:32",
    "max_split_size_mb:64,max_split_size_mb:32,",
    "roundup_power2_divisions:[256:1, 512:2,>:4],",
    "garbage_collection_threshold:0.5,",
    "expandable_segments:False,",
    "expandable_ segments:Fal se",
    "expandable_segments:True,expandable_segments:False ,",
    ",",
    "max_split_size_mb:64,,",
    ",max_split_size_mb:64",
    "max_split_size_mb",
    "max_split_size_mb:",
    "max_split_size_mb:1",
    "max_split_size_mb:many",
    "max_split_size_mb:64,max_split_size_mb:1,",
    "MAX_SPLIT_SIZE_MB:64",
    "expandable_segments:false",
    "no_such_setting:1",
    "no_such_setting:1,",
)
ferro = sys.argv[1] == "ferro"


def refusal(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def meaning():
    said = torch.cuda.memory._snapshot()["allocator_settings"]
    return [
        said["max_split_size"],
        said["garbage_collection_threshold"],
        sorted(said["roundup_power2_divisions"].items()),
    ]


def expandable():
    return torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]


def allocate():
    torch.empty(3 << 20, dtype=torch.uint8, device="cuda").zero_()


if ferro:
    ferro_alloc.install()
allocate()
found = {}
for text in SPELLINGS:
    refused = refusal(lambda text=text: torch._C._accelerator_setAllocatorSettings(text))
    # The settings after a refused text are unspecified.
    said = None if refused else meaning()
    off = None if "expandable" not in text or refused else not expandable()
    after = [refusal(allocate)]
    if ferro:
        after += [refusal(ferro_alloc.uninstall), refusal(allocate)]
        kept = None if refused else meaning()
        after += [] if kept == said else [f"{said} became {kept}"]
        after += [refusal(ferro_alloc.install), refusal(allocate)]
    found[text] = {"refused": refused, "meaning": said, "off": off, "after": any(after)}
    torch._C._accelerator_setAllocatorSettings("")
print(json.dumps(found))
