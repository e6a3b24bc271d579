"""Embeddings that read an index (RECO): fusion modules, how they are trained, and encoders that use them."""
