"""Roofline page: share of the measured ceiling of every case."""
