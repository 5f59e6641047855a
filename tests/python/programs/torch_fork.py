"""Forks after the installation and before CUDA is used: the parent uses it, the child does not."""

import os

from feature_checks import MIB, filled, words

import torch

child = os.fork()
assert torch.cuda.get_allocator_backend() == "ferro_alloc"
if child == 0:
    os._exit(0 if torch.zeros(MIB).sum() == 0 else 1)
kept = filled(MIB, 5)
assert torch.equal(kept.cpu(), words(5, MIB))
assert os.waitpid(child, 0)[1] == 0
