"""Commands `bench`, `demo`, `simulate` and `record` of the command line."""
