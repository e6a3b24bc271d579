"""Protocols, results and figures: numbers come from files."""
