"""Few-shot methods that recollect's own are compared with."""
