"""Allocates with the settings of the environment; switches allocators for the argument `ferro`."""

import sys

import torch

import ferro_alloc

if sys.argv[1] == "ferro":
    ferro_alloc.install()
    torch.empty(1, device="cuda")
    ferro_alloc.uninstall()
torch.empty(1, device="cuda")
if sys.argv[1] == "ferro":
    ferro_alloc.install()
    torch.empty(1, device="cuda")
