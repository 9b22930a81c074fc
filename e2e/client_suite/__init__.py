"""The parts of `client_lab.py`."""
