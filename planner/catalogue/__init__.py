"""What is known beforehand: accelerators with their efficiencies, and the shapes of published models."""

from planner.catalogue.architectures import architecture, architectures
from planner.catalogue.gpus import CPU, gpu_name, gpu_types, is_whole

__all__ = ["CPU", "architecture", "architectures", "gpu_name", "gpu_types", "is_whole"]
