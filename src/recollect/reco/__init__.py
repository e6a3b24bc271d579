"""Retrieval-enhanced embeddings (RECO): fusion modules, their training, and encoders that use them."""
