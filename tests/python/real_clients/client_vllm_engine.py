"""vLLM's LLM with a tiny model of dummy weights: no download, all parts of the engine.

Second argument: `eager`, `compiled` (with graphs), `asleep` (and awake again), `backend`, which is
`asleep` with ferro_alloc as its sleep-mode backend, or `process`, where the engine is a separate
process, which is the default of vLLM.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
PROMPTS, NEW_TOKENS = 4, 8


def in_force(worker):
    """Runs in the process that has the model."""
    return torch.cuda.get_allocator_backend(), torch.cuda.max_memory_reserved(), os.getpid()


def set_up(folder, how):
    (folder / "config.json").write_text(json.dumps(MODEL))
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(how == "process")),
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        # For a function that this program sends to the engine.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        # It would compile its own kernels for a quarter of an hour.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
    }


def program(model, how):
    from vllm import LLM, SamplingParams

    options = {}
    if how == "backend":
        # vLLM makes this call by the entry point where ferro_alloc is an installed package.
        from ferro_alloc.vllm_plugin import register

        register()
        options["sleep_mode_backend"] = "ferro_alloc"
    sleeps = how in ("asleep", "backend")
    llm = LLM(
        model,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=how != "compiled",
        enable_sleep_mode=sleeps,
        enable_prefix_caching=False,
        max_model_len=256,
        max_num_seqs=8,
        gpu_memory_utilization=0.5,
        compilation_config={"cudagraph_capture_sizes": [1, 2, 4]},
        **options,
    )
    wanted = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, detokenize=False, ignore_eos=True)
    prompts = [{"prompt_token_ids": list(range(3, 30 + index))} for index in range(PROMPTS)]

    def generate():
        return [len(done.outputs[0].token_ids) for done in llm.generate(prompts, wanted)]

    found = {"generated": [generate()]}
    if sleeps:
        for level in (1, 2):
            before = torch.cuda.mem_get_info()[0]
            llm.sleep(level)
            found[f"frees at level {level}"] = torch.cuda.mem_get_info()[0] - before > 1 << 30
            llm.wake_up()
            found["generated"].append(generate())
    if how == "process":
        ((found["backend"], found["engine_reserved"], process),) = llm.collective_rpc(in_force)
        found["elsewhere"] = process != os.getpid()
    found["blocks"] = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        set_up(Path(folder), sys.argv[2])
        measure(lambda: program(folder, sys.argv[2]))


if __name__ == "__main__":
    import torch

    from tests.python.client_program import measure

    main()
