"""The first lines of a verdict: one that a user acts on each, a bar that adds up, holders in words that users have; and the page of --report."""
import re

import pytest
from conftest import ROOT
from spoken import said

from cenote.fit import bar, screen
from cenote.fit.bar import Part

EXAMPLES = ROOT / "examples" / "dry"
GIB = 1 << 30


def drawn(parts, capacity):
    (text, *_) = bar.lines(parts, capacity)
    return text.strip()[1:-1]


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [7, 11, 13], [1, 10**12], [0, 5], [3] * 64, [2] * 200])
def test_a_bar_is_as_wide_as_it_is(sizes):
    counts = bar.cells(sizes, sum(sizes))
    assert sum(counts) == bar.WIDTH and all(abs(count - size * bar.WIDTH / sum(sizes)) < 1 for count, size in zip(counts, sizes))


def test_a_card_with_room_has_free_letters_at_its_end():
    text = drawn([Part("A", "activations", 4 * GIB), Part("c", "context", 4 * GIB)], 16 * GIB)
    assert text == "A" * 16 + "c" * 16 + bar.FREE * 32


def test_what_does_not_fit_stands_behind_the_end_of_the_card():
    text = drawn([Part("A", "activations", 12 * GIB), Part("c", "context", 4 * GIB)], 8 * GIB)
    assert text == "A" * 32 + bar.END + "A" * 16 + "c" * 16


def test_small_parts_have_no_name_and_are_in_the_bar():
    _, names = bar.lines([Part("A", "activations", 999), Part("G", "gradients", 1)], 1000)
    assert "activations" in names and "gradients" not in names


def row(kind, name, bytes, line="train.py:3"):
    return {"kind": kind, "name": name, "bytes": bytes, "line": line}


def test_holders_are_named_as_users_would():
    figures = {"kinds": {"parameters": 50, "optimizer state": 100}, "names": {"patterns": [
        row("parameters", "layers.*.up.weight", 50), row("activations", "layers.*.up", 20), row("gradients of activations", "layers.*", 15),
        row("activations", "layers.11.down", 2), row("activations", "lm_head", 30), row("KV cache", "layers.*.attention", 40),
        row("outside of modules", "outside modules: train.py:9", 60, "train.py:9"), row("outside of modules", "outside modules", 1, ""),
        row("activations", "outside modules: train.py:7", 10, "train.py:7")]}}
    assert screen.holders(figures) == [
        ("optimizer state", 100), ("tensors of train.py:9", 60), ("parameters", 50), ("KV cache of layers.*", 40),
        ("activations of layers.*", 37), ("logits of lm_head", 30), ("activations of train.py:7", 10), ("tensors of no line that is known", 1)]


@pytest.fixture
def short(nursed_run):
    """short(OPTION..., SCRIPT): the lines that a user gets who asks for no more."""
    def call(*words, status=0):
        done = nursed_run("dry-run", "--quiet", *words, cwd=EXAMPLES, SHORT=1)
        assert done.returncode == status, done.stderr
        return done.stdout.strip().splitlines()
    return call


@pytest.mark.torch
@pytest.mark.simulation
class TestOfARun:
    def test_it_fits(self, short):
        lines = short("--gpu", "24GiB", "blocks.py")
        assert len(lines) == 7 and max(map(len, lines)) < 170
        assert re.match(r"fits: [0-9.]+ GiB of 24\.00 GiB, [0-9.]+ GiB left \(5 steps of the optimizer", lines[1])
        assert re.fullmatch(r"  \[[A-Zkc.]{64}\]", lines[2]) and lines[4].startswith("  most: activations of layers.* ")
        assert lines[5].startswith("  it would get through with ") and lines[6].startswith("  not seen: evaluation, saving, ")
        assert lines[6].endswith(screen.MORE)

    def test_it_does_not_fit_and_what_to_do(self, short):
        lines = short("--gpu", "2GiB", "wide.py", status=1)
        assert len(lines) == 10
        assert re.match(r"does not fit: needs at least [0-9.]+ GiB, [0-9.]+ GiB more than there is$", lines[1])
        assert lines[2] == "  memory ran out in step 1, forward, at wide.py:8, in model.7: loss = model(x).sum()"
        assert lines[3].count(bar.END) == 1 and lines[6].startswith("  a larger card: rtx4060 ")
        assert lines[7] == "  a change to it: cenote dry-run --advise --quiet --gpu 2GiB wide.py"

    def test_an_allocator_that_makes_it_fit_is_what_to_type(self, nursed_run, tmp_path):
        (tmp_path / "holes.py").write_text(HOLES)
        done = nursed_run("dry-run", "--quiet", "--gpu", "2110MiB", "holes.py", SHORT=1)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "to make it fit: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or CENOTE=on\n" in done.stdout, done.stdout

    def test_values_that_decide_sizes_are_told_and_others_are_not(self, short):
        lines = short("--gpu", "3GiB", "verdicts.py", "keeps", status=5)
        assert any("sizes depend on a copy at verdicts.py:37" in line for line in lines)
        assert not any("read back" in line for line in short("--gpu", "24GiB", "blocks.py"))

    def test_growth(self, short):
        lines = short("--gpu", "8GiB", "leak.py", status=6)
        assert lines[1].startswith("fits for now: grows 64.0 MiB a step (list `outputs`, leak.py:13)")
        assert re.match(r"  so far [0-9.]+ GiB of 8\.00 GiB, [0-9.]+ GiB left ", lines[2])

    def test_the_bar_of_what_does_not_fit_is_what_is_needed(self, short):
        lines = short("--gpu", "2GiB", "wide.py", status=1)
        needed = float(re.search(r"needs at least ([0-9.]+) GiB", lines[1])[1])
        sizes = re.findall(r"([0-9.]+) ([GM])iB", lines[4])
        assert sum(float(number) * (1 if unit == "G" else 1 / 1024) for number, unit in sizes) == pytest.approx(needed, abs=0.03)
        assert set(lines[3].strip()[1:-1]) == set(re.findall(r"(?:^ {3}|, )(\S) ", lines[4])), "each letter has a name"

    def test_a_limit_of_the_program_itself(self, nursed_run, tmp_path):
        (tmp_path / "limited.py").write_text(LIMITED)
        done = nursed_run("dry-run", "--quiet", "--gpu", "8GiB", "limited.py", SHORT=1)
        assert done.returncode == 1, done.stderr
        assert "beside the context, and lets PyTorch hold 2.00 GiB (set_per_process_memory_fraction): " in done.stdout
        assert " | what it lets itself hold, and the context" in done.stdout and "or let it hold more" in done.stdout
        assert "get through" not in done.stdout and "larger card" not in done.stdout

    def test_advice_about_a_card_that_the_user_did_not_name(self, nursed_run, tmp_path):
        (tmp_path / "huge.py").write_text("import torch\nx = torch.empty(500 << 30, dtype=torch.uint8, device='cuda')\n")
        done = nursed_run("dry-run", "--quiet", "huge.py", "--gpu", "0", SHORT=1)
        assert done.returncode == 1, done.stderr
        assert "cenote dry-run --advise --gpu b200 --quiet huge.py --gpu 0\n" in done.stdout, done.stdout

    def test_several_cards(self, short):
        lines = short("--gpu", "rtx4090,1GiB", "blocks.py", status=1)
        assert "by" not in lines[1].split() and any(line.startswith("  most: ") for line in lines)
        assert not any("peak in step" in line for line in lines)

    def test_a_kv_cache_is_called_so(self, nursed_run, tmp_path):
        (tmp_path / "serve.py").write_text(SERVE)
        done = nursed_run("dry-run", "--quiet", "--gpu", "4GiB", "serve.py", SHORT=1)
        assert done.returncode == 0, done.stderr
        assert "KV cache of model.layers.* 125.0 MiB" in done.stdout and " K KV cache " in done.stdout

    def test_the_page_has_all_lines_of_the_verdict(self, nursed_run, tmp_path):
        done = nursed_run("dry-run", "--quiet", "--gpu", "24GiB", "--report", tmp_path / "out.html", EXAMPLES / "blocks.py", SHORT=1)
        assert done.returncode == 0 and "open it in a browser" in said(done.stderr)
        page = (tmp_path / "out.html").read_text()
        assert '<div class="above"><pre>--- cenote dry-run ' in page and "  most: activations of layers.*" in page
        assert "largest at the peak:" in page and "layers.*.up" in page
        assert "largest at the peak:" not in done.stdout

    def test_a_page_is_a_page(self, nursed_run, tmp_path):
        done = nursed_run("dry-run", "--gpu", "24GiB", "--report", tmp_path / "out.png", EXAMPLES / "blocks.py")
        assert done.returncode == 2 and "does not end in .html" in said(done.stderr)


HOLES = """
import torch
kept = []
for size in range(20, 60):      # each leaves a hole that the next, larger one does not fit
    a = torch.empty(size << 20, dtype=torch.uint8, device="cuda")
    kept.append(torch.empty(12 << 20, dtype=torch.uint8, device="cuda"))
    del a
big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
"""

LIMITED = """
import torch
torch.cuda.set_per_process_memory_fraction(0.25)
kept = torch.empty(2100 << 20, dtype=torch.uint8, device="cuda")
"""

SERVE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8, vocab_size=2000)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda().eval()
ids = torch.randint(2000, (32, 1000), device="cuda")
model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=24, max_new_tokens=24, do_sample=False, pad_token_id=0)
"""
