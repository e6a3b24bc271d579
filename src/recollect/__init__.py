"""Vision-language models that learn to look things up."""

__version__ = "0.2.0"
