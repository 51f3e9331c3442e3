from tests.gate.conftest import repository

__all__ = ["repository"]
