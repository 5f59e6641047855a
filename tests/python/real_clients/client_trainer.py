"""Fine-tunes a small Llama with transformers' Trainer, on lengths that vary from step to step.

Second argument: `full`; `lora`, where peft adds adapters and accelerate places the model; `large`,
whose batches do not fit; or `halved`, where accelerate halves the batches until they fit.
"""

import sys
import tempfile

import accelerate
import peft
import torch
import transformers
from torch.utils.data import Dataset

from tests.python.client_program import measure

WIDTH, LAYERS, VOCABULARY, STEPS, BATCH = 256, 4, 8000, 24, 4
TOO_LARGE = 256


class Texts(Dataset):
    """Random texts; every fourth batch is four times as long."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        batch = index // BATCH
        length = 64 + 37 * (batch % 5) + (512 if batch % 4 == 3 else 0)
        tokens = (torch.arange(length) * 31 + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens.clone()}


class SameTexts(Texts):
    def __len__(self):
        return 2 * TOO_LARGE

    def __getitem__(self, index):
        return super().__getitem__(0)


def collate(samples):
    return {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}


class Record(transformers.TrainerCallback):
    """The callbacks of Trainer, without the values that kernels would have computed."""

    def __init__(self):
        self.steps, self.told = 0, []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps = state.global_step

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.told.append(sorted(logs))


def load_model(kind):
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    model = transformers.LlamaForCausalLM(config)
    if kind == "lora":
        model = accelerate.dispatch_model(model, {"": 0})
        adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapters)
    return model


def train():
    torch.manual_seed(0)
    model = load_model(sys.argv[2])
    before = {name: p.detach().cpu().clone() for name, p in model.named_parameters()}
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            activation_checkpointing=sys.argv[2] == "full",
            bf16=True,
            logging_steps=8,
            save_steps=12,
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
            train_sampling_strategy="sequential",
        )
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=Texts(),
            data_collator=collate,
            callbacks=[record],
        )
        outcome = trainer.train()
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-12")
        saved = transformers.trainer_utils.get_last_checkpoint(folder)
        saved = saved.rsplit("-", 1)[1]
    state = trainer.optimizer.state_dict()["state"]
    return {
        "steps": [record.steps, outcome.global_step, int(saved)],
        "told": record.told,
        "devices": sorted({str(p.device) for p in model.parameters()}),
        "shapes": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "optimizer": sorted({(k, str(v.dtype)) for s in state.values() for k, v in s.items()}),
        # No kernel computes, so the weights that were copied to the device must be unchanged.
        "kept": all(
            torch.equal(p.detach().cpu(), before[name])
            for name, p in model.named_parameters()
            if not p.requires_grad
        ),
    }


def outgrow():
    """Runs a batch that does not fit: returns what Trainer raises, or the batch that it ends up
    with."""
    halved = sys.argv[2] == "halved"
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=2,
            per_device_train_batch_size=TOO_LARGE,
            auto_find_batch_size=halved,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = transformers.Trainer(
            model=load_model("full"),
            args=arguments,
            train_dataset=SameTexts(),
            data_collator=collate,
        )
        try:
            steps = trainer.train().global_step
        except torch.OutOfMemoryError as error:
            return {"raised": str(error).partition("Tried to allocate")[0]}
        return {"steps": steps, "batch": trainer._train_batch_size}


measure(outgrow if sys.argv[2] in ("large", "halved") else train)
