"""Protocols, result files, and the tables and figures made from them."""
