"""cenote: device memory for CUDA programs, and a simulated GPU to run them on. `cenote run --help` is the place to start.

This package holds the launcher and says where the C library, its headers and the simulated GPU are. It imports neither torch nor anything
else that is not in Python itself.
"""
from cenote.places import NotBuilt, include_folder, library, simulation_folder, version

__all__ = ["NotBuilt", "__version__", "include_folder", "library", "simulation_folder"]
__version__: str = version()
