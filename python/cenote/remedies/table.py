"""The remedies, in the order in which `cenote dry-run --advise` tries them."""
from cenote.remedies.checkpointing import Checkpointing, OnHost
from cenote.remedies.optimizers import EightBit, FreedGradients, Fused, InBackward, OptimizerOnHost
from cenote.remedies.precision import Autocast, HalfWeights
from cenote.remedies.remedy import Remedy
from cenote.remedies.sharding import Sharded
from cenote.remedies.sizes import Batch, BatchArgument, Sequence

ALL: tuple[type[Remedy], ...] = (Checkpointing, OnHost, Autocast, HalfWeights, Fused, EightBit, OptimizerOnHost, InBackward, FreedGradients, Sharded,
                                 BatchArgument, Batch, Sequence)
BY_NAME = {remedy.name: remedy for remedy in ALL}
