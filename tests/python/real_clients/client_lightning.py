"""Trains a small transformer with Lightning's Trainer: fit, validate, checkpoint, and go on."""

import tempfile
import warnings
from pathlib import Path

import pytorch_lightning as lightning
import torch
from torch import nn

from tests.python.client_program import measure

WIDTH, LAYERS, VOCABULARY, STEPS, BATCH = 256, 4, 4000, 24, 4


class Texts(torch.utils.data.Dataset):
    """Random texts; each batch has a different length."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        length = 64 + 61 * (index // BATCH % 7)
        return (torch.arange(length) * 31 + index) % VOCABULARY


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.seen = []

    def loss(self, tokens):
        logits = self.head(self.encoder(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    def training_step(self, tokens, index):
        self.seen.append([str(tokens.device), *tokens.shape])
        loss = self.loss(tokens)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, tokens, index):
        self.log("validation_loss", self.loss(tokens))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]


def trainer(folder, steps):
    save = lightning.callbacks.ModelCheckpoint(
        folder, "{step}", every_n_train_steps=12, save_top_k=-1
    )
    return lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        limit_val_batches=2,
        callbacks=[save],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train():
    lightning.seed_everything(0, verbose=False)
    loader = torch.utils.data.DataLoader(Texts(), BATCH)
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(folder, 12)
        first.fit(Model(), loader, loader)
        saved = sorted(path.name for path in Path(folder).glob("*.ckpt"))
        model = Model()
        second = trainer(folder, 24)
        second.fit(model, loader, loader, ckpt_path=f"{folder}/{saved[-1]}")
        state = second.optimizers[0].state_dict()["state"]
        return {
            "steps": [first.global_step, second.global_step],
            "saved": saved,
            "batches": len(model.seen),
            "seen": model.seen[:3],
            "logged": sorted(second.callback_metrics),
            "optimizer": sorted({(k, str(v.dtype)) for s in state.values() for k, v in s.items()}),
        }


warnings.simplefilter("ignore")
measure(train)
