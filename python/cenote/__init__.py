"""cenote: device memory for CUDA programs, and a simulated GPU to run them on. `cenote run --help` is the place to start.

This package holds the launcher, makes cenote PyTorch's allocator, and says where the C library, its headers and the simulated GPU are. It imports
neither torch nor anything else that is not in Python itself.
"""
from cenote.places import NotBuilt, include_folder, library, simulation_folder, version

TYPE_CHECKING = False  # as typing has it, without importing that: see cenote/hook.py
if TYPE_CHECKING:
    from cenote.bindings import Device
    from cenote.plugin import Status
    from cenote.stepping import Step

__all__ = ["NotBuilt", "__version__", "include_folder", "install", "library", "simulation_folder", "status", "step", "steps"]
__version__: str = version()


def install() -> None:
    """Makes cenote the allocator of PyTorch, here and in processes that this one starts. RuntimeError once a GPU has been used."""
    from cenote import plugin
    plugin.install()


def status() -> "Status":
    """Which allocator PyTorch has in this process: a named tuple of allocator, adapter, torch and note. Imports no torch."""
    from cenote import plugin
    return plugin.status()


def step() -> None:
    """One iteration of the program is over, on all devices. From the first call on `optimizer.step()` is not counted by itself any more.

        for batch in batches:
            train(batch)
            cenote.step()
    """
    from cenote import stepping
    stepping.step()


def steps(device: "Device" = None) -> "list[Step]":
    """The last steps of a device, up to 256 of them, the oldest first: named tuples of number, seconds, live, reserved, peak.

        print(max(step.peak for step in cenote.steps()))
    """
    from cenote import stepping
    return stepping.steps(device)
