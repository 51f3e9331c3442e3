"""Optimizers that torch lacks."""
