"""`pycollective run`: starts ranks on this host, on given hosts, or on hosts that come and go."""
