"""Frameworks that train on many GPUs, under `cenote dry-run --world`: a real rank among phantoms holds what it holds among real ranks, to the byte.

tools/setup does not install them: a test is skipped where its framework is not there. docs/ranks.md says which versions have passed.
"""
import importlib.util

import pytest
from conftest import ROOT
from test_ranks import dry, measure, python  # noqa: F401  (fixtures)

pytestmark = [pytest.mark.torch, pytest.mark.simulation, pytest.mark.deep]

EXAMPLES = ROOT / "examples/dry"
# The module that has to be there, ranks, the program, and the real ranks
CASES = {
    "DeepSpeed, ZeRO 1": ("deepspeed", 4, ["deepspeed_zero.py", "1"], ["0", "3"]),
    "DeepSpeed, ZeRO 2": ("deepspeed", 4, ["deepspeed_zero.py", "2"], ["0", "3"]),
    "DeepSpeed, ZeRO 3": ("deepspeed", 4, ["deepspeed_zero.py", "3"], ["0", "3"]),
    "Megatron, TP2": ("megatron.core", 2, ["megatron_gpt.py", "2"], ["0", "1"]),
    "Megatron, TP2 x PP2": ("megatron.core", 4, ["megatron_gpt.py", "2", "2"], ["0,2", "1,3"]),
    "Megatron, TP2 x sequence": ("megatron.core", 2, ["megatron_gpt.py", "2", "1", "sequence"], ["0", "1"]),
    "Megatron, TP4 x sequence": ("megatron.core", 4, ["megatron_gpt.py", "4", "1", "sequence"], ["0", "1", "2", "3"]),
    "Megatron, TP2 x PP2 x sequence": ("megatron.core", 4, ["megatron_gpt.py", "2", "2", "sequence"], ["0,2", "1,3"]),
    "torchtitan, FSDP2": ("torchtitan", 2, ["titan_llama.py"], ["0", "1"]),
    "torchtitan, TP2 x FSDP2": ("torchtitan", 4, ["titan_llama.py", "2"], ["0", "3"]),
    "torchtitan, PP2 x FSDP2": ("torchtitan", 4, ["titan_llama.py", "1", "2"], ["0,2", "1,3"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_framework_on_a_few_ranks(measure, case):  # noqa: F811
    module, ranks, (script, *arguments), parts = CASES[case]
    if not importlib.util.find_spec(module.partition(".")[0]):
        pytest.skip(f"{module} is not installed, and tools/setup does not install it: `pip install` it to run this test")
    program = [EXAMPLES / script, *arguments]
    measure(ranks, *program, real=parts[0])  # compiles: what is compiled first takes other memory
    together = measure(ranks, *program)
    for real in parts:
        apart = measure(ranks, *program, real=real)
        assert apart == {rank: together[rank] for rank in apart}
