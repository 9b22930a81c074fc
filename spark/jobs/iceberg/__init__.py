"""The export into Iceberg tables. Its modules need the extra `iceberg`: the registry of jobs does not import them."""
