"""The tokens of `generate()` in a dry run: the last of them are computed, not run, and the answer is that of the whole run, to the byte."""
import importlib.util
import os

import pytest
from test_dry_run import dry  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.torch, pytest.mark.simulation,
              pytest.mark.skipif(not (importlib.util.find_spec("transformers") or os.environ.get("CENOTE_TEST_ALL")),
                                 reason="transformers is not installed")]
FIGURES = ("live_peak", "reserved_peak", "requested_peak", "others", "reserved")
HEAD = """
    import torch, transformers
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig
    torch.manual_seed(0)
    small = dict(vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    def generate(config, tokens, batch=3, **more):
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config).eval()
        ids = torch.randint(900, (batch, 16), device="cuda")
        return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, max_new_tokens=tokens, **more)
"""
WAYS = {
    "dynamic": "generate(LlamaConfig(**small), 300, 16)",
    "sampled": "generate(LlamaConfig(**small), 200, do_sample=True, top_k=20)",
    "positions": "generate(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=1000), 200)",
    "eager": "generate(LlamaConfig(**small, attn_implementation='eager'), 200)",
    "static": "generate(LlamaConfig(**small), 200, cache_implementation='static', disable_compile=True)",
    "sliding": "generate(MistralConfig(**small, sliding_window=400), 200)",
    "sliding-full": "generate(MistralConfig(**small, sliding_window=24), 200)",
    "beams": "generate(LlamaConfig(**small), 200, num_beams=3)",
}


def figures(answer):
    return {name: answer["processes"][0]["devices"]["0"][name] for name in FIGURES}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_computed_is_what_would_run(dry, way):  # noqa: F811
    code = f"{HEAD}    {WAYS[way]}\n"
    done, found = dry(code, "--gpu", "4GiB")
    whole = dry(code, "--gpu", "4GiB", "--steps", "0")[1]
    assert figures(found) == figures(whole), way
    assert found["replays"] == whole["replays"]
    tokens = found["processes"][0]["tokens"]
    assert tokens["run"] + tokens["computed"] == tokens["of"] > 3 * tokens["run"] - 100, tokens
    assert whole["processes"][0]["tokens"] is None
    assert f" tokens: {tokens['run']} ran, the last {tokens['computed']} were computed, not run; then ended)" in done.stdout


REFUSED = {
    "criteria": "generate(LlamaConfig(**small), 200, stopping_criteria=[lambda ids, scores: ids[:, 0] < 0])",
    "window": "generate(MistralConfig(**small, sliding_window=150), 200)",
    "uneven": "generate(LlamaConfig(**small), 200, logits_processor=[lambda ids, scores: scores * torch.ones(ids.shape[1] ** 2).cuda()[0]])",
    "long-texts": "generate(LlamaConfig(**small, rope_scaling=dict(rope_type='dynamic', factor=2.0)), 200)",
    "few": "generate(LlamaConfig(**small), 100)",
    "training": "optimizer = torch.optim.SGD([torch.ones(1, device='cuda')]); generate(LlamaConfig(**small), 200)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_computed(dry, why):  # noqa: F811
    done, found = dry(f"{HEAD}    {REFUSED[why]}\n", "--gpu", "4GiB")
    assert done.returncode == 0 and found["processes"][0]["tokens"] is None, done.stdout + done.stderr
    assert "computed, not run" not in done.stdout and "(to its end" in done.stdout


def test_memory_runs_out_in_a_token_that_is_computed(dry):  # noqa: F811
    """The same allocation fails as in the whole run, with as much live and held."""
    code = f"{HEAD}    generate(LlamaConfig(**small), 300, 128)\n"
    found = dry(code, "--gpu", "4GiB")[1]
    device = found["processes"][0]["devices"]["0"]
    card = f"{(device['others'] + device['reserved_peak'] * 3 // 4) >> 20}MiB"
    done, found = dry(code, "--gpu", card)
    whole = dry(code, "--gpu", card, "--steps", "0")[1]
    assert done.returncode == 1 and found["verdict"] == whole["verdict"] == "fits not"
    for name in ("bytes", "live", "reserved"):
        assert found["failure"][name] == whole["failure"][name], name
    tokens = found["processes"][0]["tokens"]
    assert tokens["run"] < found["failure"]["token"] == tokens["run"] + tokens["computed"] + 1 < 300
    assert f"does not fit: memory ran out in token {found['failure']['token']}" in done.stdout
    assert found["largest"]["processes"][0]["tokens"]["of"] == 300 and found["missing"] == whole["missing"]


def test_a_process_of_a_server_that_is_killed(dry):  # noqa: F811
    """It made no step of an optimizer, and Python does not end there."""
    code = """
        import os, signal, torch
        def serve():
            model = torch.nn.Linear(4096, 4096).cuda()
            kept = [model(torch.ones(1024, 4096, device="cuda")) for _ in range(5)]
            os.kill(os.getpid(), signal.SIGKILL)
        if __name__ == "__main__":
            server = torch.multiprocessing.get_context("spawn").Process(target=serve)
            server.start()
            server.join()
    """
    done, found = dry(code, "--gpu", "2GiB", fresh=True)
    assert done.returncode == 0 and found["verdict"] == "fits", done.stdout + done.stderr
    killed = next(one for one in found["processes"] if one["used_gpu"])
    assert killed["end"] == "" and killed["devices"]["0"]["live_peak"] > (4 * 16 + 64) << 20
