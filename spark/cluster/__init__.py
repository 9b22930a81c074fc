"""A job in a Kubernetes cluster: a driver, and an executor beside each volume (`tally-spark`).

`plan.py` parses the plan that the operator wrote. `driver.py` and `worker.py` are the two processes.
"""
