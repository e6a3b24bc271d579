"""Pairs and labeled images: opening, mixing, transforming and batching them; tasks and the catalogue of sets."""
