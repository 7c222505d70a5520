"""`cenote dry-run --model`: a program for a model by its config alone. It needs what the same program by hand needs, and says in a line what cannot
be made."""
import json
import os

import pytest
from conftest import ROOT, caller, nursery_with
from spoken import said

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

SIZES = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2000,
         "max_position_embeddings": 512}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
HAND = f"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(**{SIZES})).to(torch.bfloat16).cuda()
"""
STEPS = """
optimizer = torch.optim.AdamW(weights)
for step in range(9):
    words = torch.randint(2000, (4, 128), device="cuda")
    model(words, labels=words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BY_HAND = {
    "full": HAND + "weights = model.parameters()" + STEPS,
    "lora": HAND + """
from peft import LoraConfig, get_peft_model
names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = get_peft_model(model, LoraConfig(r=16, target_modules=names))
weights = [one for one in model.parameters() if one.requires_grad]
""" + STEPS,
    "serve": HAND + """
ids = torch.randint(2000, (4, 112), device="cuda")
model.eval().generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=16, max_new_tokens=16, do_sample=False, pad_token_id=0)
"""}

QLORA = """
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaForCausalLM
small = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = LlamaForCausalLM.from_pretrained("weights", quantization_config=small, device_map={"": 0}, dtype=torch.bfloat16)
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=16, target_modules="all-linear")).train()
weights = [one for one in model.parameters() if one.requires_grad]
""" + STEPS.replace("(4, 128)", "(16, 128)")


@pytest.fixture(scope="module")
def transformers():
    """Programs with Transformers and a few models imported."""
    nursery = nursery_with("torch._dynamo", "peft", *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "t5")),
                           "transformers.generation.utils")
    yield nursery.python
    nursery.close()


@pytest.fixture
def dry(transformers, clean, tmp_path):
    call = caller(transformers, clean, tmp_path)

    def dry(*arguments, config=LLAMA, **variables):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model/config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        done = call("dry-run", "--gpu", "2GiB", "--json", "out.json", *arguments, HF_HUB_OFFLINE="1", **variables)
        assert "Traceback" not in said(done.stderr), done.stderr
        path = tmp_path / "out.json"
        found = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return done, found
    return dry


@pytest.mark.parametrize("how", BY_HAND)
def test_it_needs_what_the_program_by_hand_needs(dry, tmp_path, how):
    asked = ["--serve"] if how == "serve" else ["--train", how]
    done, found = dry("--model", "model", *asked, "--batch", "4", "--seq", "128")
    assert done.returncode == 0 and "model: llama, by its config alone; " in done.stdout, done.stderr
    assert "--- cenote dry-run llama.py: " in done.stdout and "/cenote-dry-" not in done.stdout, done.stdout
    (tmp_path / "hand.py").write_text(BY_HAND[how])
    done, by_hand = dry("hand.py")
    assert done.returncode == 0, done.stderr
    assert found["least_needed"] == by_hand["least_needed"], (found["least_needed"], by_hand["least_needed"])


def test_the_program_is_kept_and_is_not_overwritten(dry, tmp_path):
    asked = "--model", "model/config.json", "--train", "full", "--batch", "2", "--seq", "64", "--write", "mine.py"
    done, found = dry(*asked)
    assert found["program"] == ["mine.py", "--batch", "2", "--seq", "64"]
    done, again = dry("mine.py")  # these are its defaults
    assert again["needed"] == found["needed"] and "Weights, gradients and AdamW's state in bfloat16" in (tmp_path / "mine.py").read_text()
    done, more = dry("mine.py", "--batch", "32")
    assert more["needed"] > found["needed"]
    done, found = dry(*asked)
    assert done.returncode == 2 and found is None and "there is such a file" in done.stderr


@pytest.mark.deep
def test_qlora_needs_what_a_model_that_is_read_needs(run, small_weights, tmp_path):
    """By hand the weights are those of a file, and bitsandbytes quantizes them as they come. Reading makes the peak of a smaller batch."""
    path = os.pathsep.join([str(ROOT / "python"), str(small_weights)])
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hand.py").write_text(QLORA)
    assert run("run", "--sim", "2GiB", "--quiet", "-c", HAND + 'model.save_pretrained("weights")').returncode == 0
    needs = []
    for program in (["--model", "config.json", "--train", "qlora", "--batch", "16", "--seq", "128"], ["hand.py"]):
        done = run("dry-run", "--gpu", "2GiB", "--quiet", "--json", "out.json", *program, PYTHONPATH=path, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stdout + done.stderr
        needs.append(json.loads((tmp_path / "out.json").read_text())["least_needed"])
    assert needs[0] == pytest.approx(needs[1], rel=0.005), needs


@pytest.mark.deep
def test_how_many_sequences_fit(dry):
    done, found = dry("--model", "model", "--serve", "--seq", "512", "--quiet", "--gpu", "700MiB")
    assert done.returncode == 0 and found["tried"][str(found["largest"] + 1)]["verdict"] == "fits not", done.stdout


@pytest.mark.deep
def test_another_class_of_models(dry):
    config = {"model_type": "t5", "d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 4, "d_kv": 32, "vocab_size": 1000,
              "decoder_start_token_id": 0, "is_encoder_decoder": True}
    for asked in (["--train", "full"], ["--serve"]):
        done, found = dry("--model", "model", *asked, "--batch", "2", "--seq", "64", config=config)
        assert done.returncode == 0 and found["verdict"] == "fits", done.stdout + done.stderr


TRAIN = "--train", "full", "--batch", "2", "--seq", "64"


@pytest.mark.parametrize("config, arguments, why", [
    ("{", TRAIN, "config.json is no JSON"),
    ("[1]", TRAIN, "is no config of a model of Transformers: it has no model_type"),
    ({"hidden_size": 1}, TRAIN, "is no config of a model of Transformers: it has no model_type"),
    ({"model_type": "flurb"}, TRAIN, "knows no model of the type 'flurb'"),
    (LLAMA, (*TRAIN[:-1], "513"), "--seq 513: llama has 512 positions by this config"),
])
def test_a_config_that_does_not_serve(dry, config, arguments, why):
    done, found = dry("--model", "model", *arguments, config=config)
    assert (done.returncode, found) == (2, None) and why in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_transformers_makes_of_a_config(run, tmp_path):
    expected = [
        ({"model_type": "flurb"}, "knows no model of the type 'flurb'"),
        ({"model_type": "vit"}, "has no model of the type 'vit' that writes text"),
        ({"model_type": "flurb", "auto_map": {"AutoConfig": "mine.Config"}}, "the model brings code of its own (trust_remote_code)"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "its weights are quantized"),
        ({**LLAMA, "hidden_size": "x"}, "cannot read the config: StrictDataclassFieldValidationError"),
        ({**LLAMA, "num_attention_heads": 0}, "cannot read the config: ZeroDivisionError"),
        (LLAMA, {"type": "llama", "kind": "CausalLM", "positions": 512}),
        ({"model_type": "gpt2", "n_positions": 64}, {"type": "gpt2", "kind": "CausalLM", "positions": 64}),
        ({"model_type": "t5"}, {"type": "t5", "kind": "Seq2SeqLM", "positions": None}),
        ({"model_type": "gemma3"}, {"type": "gemma3", "kind": "CausalLM", "positions": 131072}),
    ]
    for number, (config, _) in enumerate(expected):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/config.json").write_text(json.dumps(config))
    folders = [str(tmp_path / str(number)) for number in range(len(expected))]
    code = f"import json; from cenote.fit import from_config; print(json.dumps(list(map(from_config.made_of, {folders}))))"
    done = run("run", "--sim", "1GiB", "--quiet", "-c", code)
    found = json.loads(done.stdout.splitlines()[-1])
    for (config, wanted), given in zip(expected, found):
        assert given == wanted if isinstance(wanted, dict) else wanted in given["error"], (config, given)


@pytest.mark.parametrize("arguments, why", [
    (("--model", "model", "--train", "half", "--batch", "2", "--seq", "64"), "'half' is no way to train; there are full, lora and qlora"),
    (("--model", "nobody/nothing", *TRAIN), "--model nobody/nothing: there is no such folder or file here, and Transformers found no such model"),
    (("--model", "./nothing", *TRAIN), "nothing: No such file or directory"),
    (("--model", "model", *TRAIN, "train.py"), "--model is in place of a script: leave out 'train.py'"),
    (("--model", "model", "--batch", "2", "--seq", "64"), "--model needs either --train full, lora or qlora, or --serve"),
    (("--model", "model", "--serve", *TRAIN), "--model needs either --train full, lora or qlora, or --serve"),
    (("--model", "model", "--train", "full", "--seq", "64"), "--model needs --batch N"),
    (("--model", "model", "--serve"), "--model needs --seq N"),
    (("--model", "model", "--serve", "--seq", "1"), "argument --seq: 1 tokens: it takes 2 or more"),
    (("--model", "model", *TRAIN, "--write", "none/mine.py"), "none/mine.py: No such file or directory"),
    (("--batch", "2", "train.py"), "--batch is for --model CONFIG; options of the script come after it"),
])
def test_a_mistake_in_the_options(dry, arguments, why):
    done, found = dry(*arguments)
    assert (done.returncode, found) == (2, None) and why in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_without_transformers(dry, tmp_path):
    (tmp_path / "path/transformers").mkdir(parents=True)
    (tmp_path / "path/transformers/__init__.py").write_text("raise ImportError('none is here')")
    done, _ = dry("--model", "model", *TRAIN, PYTHONPATH=f"{tmp_path}/path:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 2 and "Transformers cannot be imported (none is here): pip install transformers" in done.stderr, done.stderr
