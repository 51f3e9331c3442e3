"""Costs and savings of low precision."""
