"""The server of `tally console`: the REST interface and the console for a cluster that name servers know."""
