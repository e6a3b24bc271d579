"""Search that adapts the model to each query (EFSA), and baseline search methods."""
