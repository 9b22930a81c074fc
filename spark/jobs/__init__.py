"""The jobs over stores' files: `stats`, `audit`, `export`, `rebuild`, `trace`.

Each is a plan made on the driver, a function of one item that runs anywhere (no Spark in it), and a merge of the small
results that come back. Who runs the items is `runner.py`'s: Spark's workers, or this process.
"""
