"""A PyTorch that lacks one of its private names: `import torch` works, the allocator works, and one line says what is lost. For each row.

And an installation of which a part fails: what was installed is whole, and nothing of the part is left. For CENOTE_TEST_ALLOCATOR=cenote.
"""

import pytest
import torch

import simulated
from cenote.torch import seams
from labelled import only_cenote

pytestmark = only_cenote

# What is done, once torch is imported, in place of `import torch` with cenote in that role; and what the program does after it.
SETTINGS = {
    "on": {},
    "labels": {"CENOTE_LABELS": "on"},
    "tag": {},
    "growth": {},
    "report": {"CENOTE_SUMMARY": "quiet", "CENOTE_REPORT": "page.html"},
    "snapshot": {},
    "summary": {"CENOTE_SUMMARY": "quiet"},
    "dry": {"CENOTE_DRY_STEPS": "0", "CENOTE_DRY_UNKNOWN": "typical", "CENOTE_DRY_REDIRECT": "{}"},
    "advise": {"CENOTE_DRY_STEPS": "0", "CENOTE_DRY_REMEDIES": "look"},
    "phantoms": {"CENOTE_DRY_STEPS": "0", "CENOTE_PHANTOMS": "0"},
    "replay": {},
    "fallback": {"CENOTE": "fallback", "CXX": "/nonexistent/c++"},
}
PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch
import importlib
from cenote.torch import features, seams
name, probe, runs, folder = {name!r}, {probe!r}, {runs!r}, {folder!r}
owner, _, last = name.rpartition(".")
if probe == "import":
    importlib.import_module(owner)
delattr(seams.get(owner), last)
os.environ.update({settings!r})
if runs in ("dry", "advise", "phantoms"):
    os.environ["CENOTE_DRY_RUN"] = folder
if runs == "fallback":
    os.environ["XDG_CACHE_HOME"] = folder
from cenote import hook
try:
    hook.act("off" if runs == "report" else "on")
    import cenote
    if runs == "tag":
        with cenote.tag("a"):
            pass
    elif runs == "growth":
        cenote.growth()
    elif runs == "snapshot":
        torch.ones(1, device="cuda")
        cenote.snapshot(folder + "/x.pickle", 0)
    elif runs == "replay":
        from cenote.replay import player
        player.Torch(torch, dict(streams=[], allocator="cenote"))
    elif probe == "import":
        from cenote.labels import hooks
        hooks._labels.visiting.look()
except RuntimeError as why:  # what a program asks for by a call
    print(why, file=sys.stderr)
memory = torch.ones(1000, device="cuda")
at = memory.data_ptr()
del memory
assert torch.ones(1000, device="cuda").data_ptr() == at
print(torch.cuda.get_allocator_backend())
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""
ROWS = [(feature.runs, seam) for feature in seams.table().values() for seam in feature.seams if seam.probe in ("attribute", seams.IMPORT)]
ROWS = list(dict.fromkeys(ROWS))


def ours(text: str) -> list[str]:
    """What the simulated GPU says of itself is not said by cenote."""
    return [line for line in text.splitlines() if not line.startswith("simulated GPU: ")]


@pytest.mark.parametrize("runs, seam", ROWS, ids=[f"{runs}-{seam.name}" for runs, seam in ROWS])
def test_a_name_that_is_gone(runs, seam, tmp_path):
    code = PROGRAM.format(name=seam.name, probe=seam.probe, runs=runs, folder=str(tmp_path),
                          settings=SETTINGS["labels"] if seam.probe == "import" else SETTINGS[runs])
    done = simulated.forked(code, CENOTE="")
    assert done.stdout.split()[-1:] == [{"fallback": "pluggable", "report": "native"}.get(runs, "cenote")]
    lines = ours(done.stderr)
    said = [line for line in lines if seam.name in line]
    lost = {feature.lost for feature in seams.table().values() if any(one.name == seam.name for one in feature.seams)}
    assert said and (runs == "phantoms" or len({line.partition(f" has no {seam.name}: ")[2] for line in said} & lost) == len(said)), done.stderr
    assert len(said) == 1 or runs == "advise", said  # a name that two features need has two losses
    assert runs == "fallback" or len(lines) == len(said), done.stderr  # the fallback says what it is


def test_the_table_is_true_of_this_torch():
    assert [seam.name for _, seam, is_there in seams.examined() if not is_there and seam.since <= "2.11"] == []


# --- an installation of which a part fails

BROKEN = """
import os, sys
import torch
from cenote.torch import features, patches
{breaks}
os.environ["CENOTE_LABELS"] = "on"
from cenote import hook
hook.act("on")
import cenote
x = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
print(torch.cuda.get_allocator_backend(), {asks})
cenote.install()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def breaking(breaks, asks, **environ):
    done = simulated.forked(BROKEN.format(breaks=breaks, asks=asks), CENOTE="", **environ)
    return done.stdout.split(), ours(done.stderr)


def test_a_part_that_breaks_half_way_leaves_nothing():
    """The second of two replacements fails: the first is undone."""
    breaks = """
inside = patches.replace
def replace(feature, where, make):
    if where == "torch._C._accelerator_synchronizeDevice":
        raise KeyError("renamed")
    return inside(feature, where, make)
patches.replace, at = replace, torch._C._cuda_synchronize
"""
    out, (line,) = breaking(breaks, "torch._C._cuda_synchronize is at")
    assert out == ["cenote", "True"]
    assert line.startswith("cenote: synchronize did not begin, KeyError: 'renamed': with announced:0")


def test_labels_that_break_half_way_leave_nothing():
    breaks = """
import torch.optim.optimizer as optimizers
call, engine = torch.nn.Module.__call__, torch.autograd._engine_run_backward
del optimizers.register_optimizer_step_pre_hook
"""
    out, (line,) = breaking(breaks, "torch.nn.Module.__call__ is call, torch.autograd._engine_run_backward is engine")
    assert out == ["cenote", "True", "True"] and line.startswith("cenote: labels did not begin, ImportError: ")


def test_what_stands_in_the_way_of_the_adapter_is_told_as_a_missing_compiler_is():
    """Here PyTorch does not say which commit it is built from."""
    out, lines = breaking("import os; os.environ['CENOTE'] = 'fallback'; del torch.version.git_version", "cenote.status().note")
    assert out[:2] == ["pluggable", "AttributeError:"] and lines[0].startswith("cenote: no adapter for torch ")


def test_a_stream_is_retired_by_the_adapter_that_was_loaded():
    """It is not looked up by its path, where another file may lie by then, or none."""
    out, lines = breaking("", "(setattr(sys.modules['cenote.inside.plugin'], '_adapter', '/nonexistent'), cenote.retire(torch.cuda.Stream()))")
    assert out[0] == "cenote" and not lines
