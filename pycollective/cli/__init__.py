"""The command line: `pycollective run`, `bench`, `verify`, `draw`, `topologies`, `doctor`."""
