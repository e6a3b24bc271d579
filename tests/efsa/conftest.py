"""Small random dual encoders of three families, and indexes of random pictures."""
# ruff: noqa: F401

from dual_encoders import encoder, family, make_encoder, make_episode_batch, make_index, pictures
