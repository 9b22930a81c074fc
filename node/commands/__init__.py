"""Sub-commands of `tally`: each module adds its parsers and holds what they do."""
