"""`cenote dry-run --model`: a program for a model of which there is the config alone. It trains the model, or serves with it, and is dry-run like a
program of the user's; --write keeps it.

The config is read by Transformers, in a process of its own on the simulated GPU (`main`), because Transformers imports PyTorch for that. Here the
answer becomes the program or a Mistake.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple, Optional, Sequence

from cenote.base import outputs
from cenote.base.mistake import Mistake, visible
from cenote.fit import number
from cenote.launch import command_line, environment, python, run
from cenote.launch.environment import Wish

SIZES_MAX = 10**9
SEQUENCES = "batch=1..1024"  # that are tried if it is not said how many
NEW = 16  # tokens that a server generates, of each sequence
RANK = 16  # of LoRA
CLASSES = ("CausalLM", "Seq2SeqLM", "ImageTextToText")  # AutoModelFor..., the first that knows the model
WORDS = {"full": "weights, gradients and AdamW's state in bfloat16", "lora": f"LoRA of rank {RANK} on all linear layers of a base in bfloat16, AdamW",
         "qlora": f"LoRA of rank {RANK} on all linear layers of a base in NF4 with nested scales, AdamW; PEFT prepares it: the rest is in float32",
         "serve": f"weights in bfloat16, generate() with a KV cache, the last {NEW} tokens of each sequence are new"}
PACKAGES = {"lora": "peft", "qlora": "peft,accelerate,bitsandbytes"}
HEAD = '''"""{title}. From its config, without weights; `cenote dry-run --model` wrote it.

{assumed}.
"""
import argparse

import torch
{imports}

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default={batch})
parser.add_argument("--seq", type=int, default={seq})
given = parser.parse_args()

config = AutoConfig.from_pretrained({path!r})
'''
WHOLE = '''with torch.device("cuda"):
    model = AutoModelForX.from_config(config, dtype=torch.bfloat16)
'''
QUANTIZED = '''with init_empty_weights():
    model = AutoModelForX.from_config(config, dtype=torch.bfloat16)
head = [name for name, module in model.named_modules() if module is model.get_output_embeddings()]
replace_with_bnb_linear(model, modules_to_not_convert=head, quantization_config=BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16))
for name, weight in list(model.named_parameters()):  # one after the other, as from_pretrained() reads them
    module, _, last = name.rpartition(".")
    new = torch.nn.Parameter(torch.empty_like(weight, dtype=torch.bfloat16, device="cuda"), requires_grad=False)
    if type(weight) is not torch.nn.Parameter:
        new = type(weight)(new.data, requires_grad=False, **weight.__dict__).to("cuda")  # which quantizes it
    setattr(model.get_submodule(module), last, new)
model.tie_weights()
model.cuda().is_loaded_in_4bit = True
model = prepare_model_for_kbit_training(model)
'''
LORA = f'''model = get_peft_model(model, LoraConfig(r={RANK}, target_modules="all-linear"))
'''
TRAIN = '''model.train()
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
for step in range(100):
    ids = torch.randint(config.get_text_config().vocab_size, (given.batch, given.seq), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''
SERVE = f'''model.eval()
new = min({NEW}, given.seq // 2)
ids = torch.randint(config.get_text_config().vocab_size, (given.batch, given.seq - new), device="cuda")
model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=new, max_new_tokens=new, do_sample=False, pad_token_id=0)
'''


class Found(NamedTuple):
    """What Transformers makes of the config."""

    type: str  # such as llama
    kind: str  # of CLASSES
    positions: Optional[int]  # the longest sequence


# --- the options

def batch(text: str) -> int:
    return command_line.count(text, SIZES_MAX) or command_line.refuse("0 sequences: it takes 1 or more")


def seq(text: str) -> int:
    tokens = command_line.count(text, SIZES_MAX)
    return tokens if tokens > 1 else command_line.refuse(f"{tokens} tokens: it takes 2 or more")


def training(text: str) -> str:
    if text not in ("full", "lora", "qlora"):
        command_line.refuse(f"{text[:40]!r} is no way to train; there are full, lora and qlora")
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="CONFIG", help="in place of a script: a model of Transformers by its config, a folder, a config.json "
                        "or a name of the hub, without weights; with --train or --serve")
    parser.add_argument("--train", metavar="HOW", type=training, help="with --model: full, lora, or qlora")
    parser.add_argument("--serve", action="store_true", help="with --model: generates; without --batch the answer is how many sequences fit")
    parser.add_argument("--batch", metavar="N", type=batch, help="with --model: sequences at a time")
    parser.add_argument("--seq", metavar="N", type=seq, help="with --model: tokens of each")
    parser.add_argument("--write", metavar="FILE", help="with --model: keep the program")


def check(options: argparse.Namespace, program: Sequence[str]) -> None:
    """Mistake if they do not go together."""
    if options.model is None:
        for name in ("train", "serve", "batch", "seq", "write"):
            if getattr(options, name):
                raise Mistake(f"--{name} is for --model CONFIG; options of the script come after it")
        return
    if program:
        raise Mistake(f"--model is in place of a script: leave out {program[0][:40]!r}")
    if bool(options.train) == options.serve:
        raise Mistake("--model needs either --train full, lora or qlora, or --serve")
    if options.seq is None:
        raise Mistake("--model needs --seq N, the tokens of a sequence")
    if options.batch is None and not options.serve:
        raise Mistake("--model needs --batch N, the sequences of a step")
    if options.batch is None and options.search is None:
        if not options.cards:
            raise Mistake("how many sequences fit is a question about cards: name one or more by --gpu, or say how many by --batch")
        options.search = number.read(SEQUENCES)


# --- the config

def path_of(model: str) -> str:
    """For from_pretrained: a path that holds in any folder, or a name of the hub, which has one slash at most."""
    is_path = os.path.exists(model) or model.startswith((".", os.sep)) or model.count(os.sep) > 1
    return os.path.abspath(model) if is_path else model


def read_file(model: str, path: str) -> None:
    """Mistake if a config of this machine is none. What Transformers makes of it is another question."""
    if path == model and not os.path.isabs(path):
        return  # a name of the hub
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as opened:
            content = json.load(opened)
    except OSError as why:
        raise Mistake(f"--model: {visible(file)}: {why.strerror}") from None
    except (ValueError, RecursionError):
        raise Mistake(f"--model: {visible(file)} is no JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise Mistake(f"--model: {visible(file)} is no config of a model of Transformers: it has no model_type")


def look(model: str, packages: str = "") -> Found:
    """`packages`: that the program needs beside Transformers, with commas."""
    path = path_of(model)
    read_file(model, path)
    preload = run.preload_library()
    variables = environment.prepare(Wish(command_line.MOST_CAPACITY, None, None, "native"), os.environ, preload)
    variables[environment.CENOTE] = "off"
    done = subprocess.run(python.of_ours(__name__, path, packages), env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False)
    said = done.stdout.decode(errors="replace").splitlines()
    try:
        found: dict[str, Any] = json.loads(said[-1])
    except (IndexError, ValueError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Mistake(f"--model: Transformers could not read the config: {visible(''.join(last))[:300]}") from None
    if "error" in found:
        raise Mistake(f"--model {visible(model)[-80:]}: {visible(found['error'])}")
    return Found(**found)


def main() -> int:
    """In the process that has Transformers. Prints a line of JSON: the fields of Found, or an error."""
    absent = [name for name in sys.argv[2].split(",") if name and importlib.util.find_spec(name) is None]
    print("\n" + json.dumps({"error": f"the program needs {absent[0]}: pip install {absent[0]}"} if absent else made_of(sys.argv[1])))
    return 0


def made_of(path: str) -> dict[str, Any]:
    try:
        import transformers  # type: ignore[import-not-found, unused-ignore]
        from transformers.models.auto import modeling_auto as known  # type: ignore[import-not-found, unused-ignore]
    except ImportError as why:
        return {"error": f"Transformers cannot be imported ({in_one_line(why)}): pip install transformers"}
    version = transformers.__version__
    try:
        config: Any = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as why:
        return {"error": why_not(why, path, version)}
    if getattr(config, "quantization_config", None):
        return {"error": "its weights are quantized, and a config alone builds them in bfloat16: write the program, and dry-run that"}
    names = {"CausalLM": known.MODEL_FOR_CAUSAL_LM_MAPPING, "Seq2SeqLM": known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
             "ImageTextToText": known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING}
    kinds = [kind for kind in CLASSES if type(config) in names[kind]]
    if not kinds:
        return {"error": f"Transformers {version} has no model of the type {config.model_type!r} that writes text: write the program, and dry-run "
                "that"}
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return {"type": config.model_type, "kind": kinds[0], "positions": positions if isinstance(positions, int) and positions > 0 else None}


def in_one_line(why: BaseException) -> str:
    return " ".join(str(why).split())[:200] or type(why).__name__


def why_not(why: Exception, path: str, version: str) -> str:
    text = str(why)
    if "trust_remote_code" in text:
        return "the model brings code of its own (trust_remote_code), which is not run here: write the program, and dry-run that"
    if "does not recognize this architecture" in text or isinstance(why, KeyError):
        kind = text.partition("model type `")[2].partition("`")[0] or text.strip("'\"")
        return f"Transformers {version} knows no model of the type {kind[:60]!r}"
    if isinstance(why, OSError) and not os.path.exists(path):
        return "there is no such folder or file here, and Transformers found no such model in the hub, or could not reach it"
    return f"Transformers {version} cannot read the config: {type(why).__name__}: {in_one_line(why)}"


# --- the program

def text_of(found: Found, options: argparse.Namespace) -> str:
    title = f"{found.type}, {'serving' if options.serve else 'training'}"
    imports = [f"from transformers import AutoConfig, AutoModelFor{found.kind}"]
    rest = WHOLE + (TRAIN if options.train else SERVE)
    if options.train == "lora":
        imports.insert(0, "from peft import LoraConfig, get_peft_model")
        rest = WHOLE + LORA + TRAIN
    elif options.train == "qlora":
        imports = ["from accelerate import init_empty_weights", "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training",
                   f"from transformers import AutoConfig, AutoModelFor{found.kind}, BitsAndBytesConfig",
                   "from transformers.integrations import replace_with_bnb_linear"]
        rest = QUANTIZED + LORA + TRAIN
    assumed = assumption(options)
    head = HEAD.format(title=title, assumed=assumed[0].upper() + assumed[1:], imports="\n".join(imports), batch=options.batch or 1, seq=options.seq,
                       path=path_of(options.model))
    return head + rest.replace("AutoModelForX", f"AutoModelFor{found.kind}")


def assumption(options: argparse.Namespace) -> str:
    how = options.train or "serve"
    return WORDS[how] + {"serve": "", "qlora": "; labels are the input; checkpointing"}.get(how, "; labels are the input; no checkpointing")


def program(options: argparse.Namespace, folder: str) -> list[str]:
    """Writes it, and returns its command line. Mistake if the config is none."""
    command_line.check_output(options.write)
    if options.write is not None and os.path.exists(options.write):
        raise Mistake(f"--write {visible(options.write)}: there is such a file, which may have changes of yours: run it, or name another")
    found = look(options.model, PACKAGES.get(options.train or "serve", ""))
    if found.positions is not None and options.seq > found.positions:
        raise Mistake(f"--seq {options.seq}: {found.type} has {found.positions} positions by this config")
    path = options.write or os.path.join(folder, f"{found.type}.py")
    outputs.write(path, text_of(found, options).encode())
    print(f"{visible(options.model)}: {found.type}, by its config alone; {assumption(options)}", flush=True)
    return [path, *(["--batch", str(options.batch)] if options.batch is not None else []), "--seq", str(options.seq)]
