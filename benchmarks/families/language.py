"""Families of language models, and one of speech: each trains or generates for a few steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.families.training import make, tokens, train

BF16 = torch.bfloat16

Shapes = Sequence[tuple[int, int]]
"""Batch and length of each step."""


def _causal(shapes: Shapes, vocabulary: int) -> Iterator[Tensor]:
    for batch, length in shapes:
        yield tokens(batch, length, vocabulary)


def _train_causal(model: nn.Module, shapes: Shapes, vocabulary: int, autocast: bool) -> None:
    train(
        model,
        _causal(shapes, vocabulary),
        lambda ids: model(input_ids=ids, labels=ids).loss,
        autocast=autocast,
    )


def _llama(width: int, layers: int, vocabulary: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        max_position_embeddings=4096,
    )
    return make(lambda: LlamaForCausalLM(config), BF16)


def llama(shapes: Shapes, width: int, layers: int, vocabulary: int) -> None:
    """Full fine-tuning in bfloat16."""
    _train_causal(_llama(width, layers, vocabulary), shapes, vocabulary, autocast=False)


def gpt2(shapes: Shapes, layers: int) -> None:
    """Training from scratch, with dropout, in mixed precision."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = make(lambda: GPT2LMHeadModel(GPT2Config(n_layer=layers)))
    _train_causal(model, shapes, 50257, autocast=True)


def bert(shapes: Shapes, layers: int) -> None:
    """Classification in floats, of padded batches."""
    from transformers import BertConfig, BertForSequenceClassification

    model = make(lambda: BertForSequenceClassification(BertConfig(num_hidden_layers=layers)))

    def batches() -> Iterator[dict[str, Tensor]]:
        for batch, length in shapes:
            mask = torch.ones(batch, length, dtype=torch.long)
            mask[1::2, length // 2 :] = 0
            labels = torch.arange(batch) % 2
            ids = tokens(batch, length, 30522)
            yield {"input_ids": ids, "attention_mask": mask.cuda(), "labels": labels.cuda()}

    train(model, batches(), lambda inputs: model(**inputs).loss)


def t5(shapes: Shapes, width: int, layers: int) -> None:
    """Sequence to sequence, in floats."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=width,
        d_ff=2 * width,
        num_layers=layers,
        num_heads=width // 64,
        decoder_start_token_id=0,
    )
    model = make(lambda: T5ForConditionalGeneration(config))

    def batches() -> Iterator[dict[str, Tensor]]:
        for batch, length in shapes:
            source, target = tokens(batch, length, 32128), tokens(batch, length // 4, 32128)
            yield {"input_ids": source, "labels": target}

    train(model, batches(), lambda inputs: model(**inputs).loss)


def lora(shapes: Shapes, width: int, layers: int, vocabulary: int) -> None:
    """Adapters on a Qwen2 in bfloat16, with checkpoints of activations."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    base = make(lambda: Qwen2ForCausalLM(config), BF16)
    base.gradient_checkpointing_enable()
    base.enable_input_require_grads()
    model = get_peft_model(base, LoraConfig(r=16, target_modules="all-linear"))
    _train_causal(model, shapes, vocabulary, autocast=False)


def mixtral(shapes: Shapes, width: int, layers: int, experts: int) -> None:
    """Mixture of experts, two for each token, in bfloat16."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 256 or 1,
        num_local_experts=experts,
        output_router_logits=True,
    )
    _train_causal(make(lambda: MixtralForCausalLM(config), BF16), shapes, 32000, autocast=False)


def generate(shapes: Shapes, width: int, layers: int, vocabulary: int, new: int) -> None:
    """Prompts of several lengths, each continued by `new` tokens with a KV cache."""
    model = _llama(width, layers, vocabulary).eval()
    for prompts in _causal(shapes, vocabulary):
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
            pad_token_id=0,
        )


def compiled(shapes: Shapes, width: int, layers: int, vocabulary: int) -> None:
    """Training of a Llama whose forward and backward passes torch.compile makes."""
    model = _llama(width, layers, vocabulary)
    model.compile()
    _train_causal(model, shapes, vocabulary, autocast=False)


def trainer(shapes: Shapes, layers: int) -> None:
    """A GPT-2 under the Trainer of transformers, which sums gradients over two batches."""
    import tempfile

    from torch.utils.data import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    ((batch, length),) = set(shapes)

    class Texts(Dataset):
        def __len__(self) -> int:
            return 2 * batch * len(shapes)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            ids = torch.randint(50257, (length,))
            return {"input_ids": ids, "labels": ids.clone()}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            bf16=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )
        model = GPT2LMHeadModel(GPT2Config(n_layer=layers))
        Trainer(model=model, args=arguments, train_dataset=Texts()).train()


def whisper(batches: Sequence[int], layers: int) -> None:
    """Speech to text, in mixed precision."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=512,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )
    model = make(lambda: WhisperForConditionalGeneration(config))

    def inputs() -> Iterator[dict[str, Tensor]]:
        for batch in batches:
            sound = torch.randn(batch, config.num_mel_bins, 3000).cuda()
            yield {"input_features": sound, "labels": tokens(batch, 128, config.vocab_size)}

    train(model, inputs(), lambda given: model(**given).loss, autocast=True)
