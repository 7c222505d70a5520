"""vLLM: a small model without weights, and ten steps of its engine. Sampled tokens mean nothing on the simulated GPU, so a request does not end."""
import json
import os
import pathlib
import tempfile

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_USE_FLASHINFER_SAMPLER="0", VLLM_LOGGING_LEVEL="ERROR")
from vllm import LLM, SamplingParams  # noqa: E402  (reads the variables)

with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
        "num_key_value_heads": 8, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16"}))
    engine = LLM(folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, gpu_memory_utilization=0.5).llm_engine
    engine.add_request("first", {"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, detokenize=False))
    for _ in range(10):
        engine.step()
