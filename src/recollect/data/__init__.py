"""Image–text pairs and labeled images: opening, mixing, transforming and batching."""
