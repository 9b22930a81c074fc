"""The jobs over stores' files, one module each: `registry.py` lists those that define `JOB`.

Each job makes a plan on the driver, has a function of one item that runs anywhere (without Spark), and merges the small
results. `runner.py` runs the items: on Spark's workers, or in this process.
"""
