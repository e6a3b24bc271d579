"""Vision-language models that learn to look things up."""

__version__ = "0.1.0"
