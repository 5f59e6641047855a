"""Trains a transformer with DeepSpeed, ZeRO stage 1 on one rank, and loads its checkpoint again."""

import os
import socket
import tempfile
from pathlib import Path

import deepspeed
import torch
from torch import nn

from tests.python.client_program import measure

WIDTH, LAYERS, STEPS, ACCUMULATED = 256, 4, 24, 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 3 * WIDTH, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.layers(x)).float().mean()


def one_rank():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def train():
    one_rank()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": ACCUMULATED,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 1 << 20},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    for step in range(STEPS):
        length = 64 + 61 * (step % 5) + (512 if step % 4 == 3 else 0)
        x = torch.zeros(4, length, WIDTH, dtype=torch.bfloat16).to(engine.device)
        engine.backward(engine(x))
        engine.step()
    steps = engine.global_steps
    with tempfile.TemporaryDirectory() as folder:
        engine.save_checkpoint(folder, tag="here")
        saved = sorted(path.name for path in Path(folder, "here").iterdir())
        engine.load_checkpoint(folder, tag="here")
    return {
        "steps": [steps, engine.global_steps, engine.micro_steps],
        "stage": engine.zero_optimization_stage(),
        "device": str(engine.device),
        "saved": saved,
        "parameters": sum(p.numel() for p in engine.module.parameters()),
        "dtypes": sorted({str(p.dtype) for p in engine.module.parameters()}),
        "skipped": engine.skipped_steps,
        "master": sorted({str(p.dtype) for p in engine.optimizer.single_partition_of_fp32_groups}),
    }


measure(train)
