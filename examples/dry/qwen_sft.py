"""One step of supervised fine-tuning of Qwen3.5 in bfloat16, on random tokens: the program whose peaks docs/dry-run.md compares with a card's.

    python qwen_sft.py --model 0.8B --length 16
    python qwen_sft.py --model 0.8B --length 16 --lora 8 --quantized       (QLoRA, with bitsandbytes)

Weights are random, because memory depends on shapes only. The configurations have as many parameters as the published models.
"""
import argparse

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

MODELS = {  # width, width of the MLP, parameters
    "0.8B": (1024, 3584, 752_393_024),
    "2B": (2048, 6144, 1_881_825_088),
}

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, default="0.8B")
parser.add_argument("--length", type=int, default=16)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--lora", type=int, metavar="RANK")
parser.add_argument("--quantized", action="store_true", help="all linear layers but the last one in NF4, with nested scales")
args = parser.parse_args()


def quantize(model):
    """bitsandbytes quantizes a weight as it comes to the GPU."""
    from bitsandbytes.nn import Linear4bit, Params4bit
    for outer in list(model.modules()):
        for name, layer in list(outer.named_children()):
            if type(layer) is not torch.nn.Linear or layer is model.lm_head:
                continue
            small = Linear4bit(layer.in_features, layer.out_features, layer.bias is not None, torch.bfloat16, quant_type="nf4")
            small.weight, small.bias = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4"), layer.bias
            setattr(outer, name, small)
    model.is_loaded_in_4bit = True  # for PEFT


def build(device):
    width, inner, count = MODELS[args.model]
    config = Qwen3_5TextConfig(hidden_size=width, intermediate_size=inner, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2,
                               linear_num_value_heads=16, tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    model = model.to(torch.bfloat16)
    if args.quantized:
        quantize(model)
    model = model.to(device)
    if args.lora:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=args.lora, lora_alpha=2 * args.lora, task_type="CAUSAL_LM", target_modules="all-linear"))
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if args.lora:
            model.enable_input_require_grads()
    return model.train()


def main():
    device = torch.device("cuda")
    model = build(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    print(f"{sum(parameter.numel() for parameter in trained):,} parameters are trained")
    if args.quantized:
        from bitsandbytes.nn import Params4bit
        weights = [weight for weight in model.parameters() if isinstance(weight, Params4bit)]
        scales = [part for state in (weight.quant_state for weight in weights) for part in (state.absmax, state.offset, state.state2.absmax)]
        print(f"{sum(tensor.nbytes for tensor in (*weights, *scales)):,} bytes of quantized weights")
    optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=False)
    for step in range(args.accumulate):
        words = torch.randint(100, 248320, (1, args.length))
        labels = words.clone()
        labels[:, :args.length // 2] = -100
        outputs = model(input_ids=words.to(device), labels=labels.to(device), use_cache=False)
        loss = outputs.loss / args.accumulate
        loss.backward()  # the model's output stays alive, as in the program that was measured on the card
        if step < args.accumulate - 1:
            del outputs, loss
    optimizer.step()
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.3f} GiB allocated at most")


if __name__ == "__main__":
    main()
