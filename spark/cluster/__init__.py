"""A job in a cluster: a driver, and an executor beside each volume. `tally-spark`.

`plan.py` is what is to be done, as the operator wrote it. `driver.py` and `worker.py` are the two processes.
"""
