"""Search that adapts to each query (EFSA), and the methods it is compared with."""
